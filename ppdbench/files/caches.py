"""The folder for what can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`PPDBENCH_CACHE`, or `ppdbench` in the user's cache folder."""
    if asked := os.environ.get("PPDBENCH_CACHE"):
        return Path(asked).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ppdbench"
