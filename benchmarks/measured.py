"""Measurements of benchmarks in files, which pages and tables are made of later."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppdbench.files.whole import write_whole


def keep(found: msgspec.Struct, path: Path | None) -> None:
    """Write what was measured where somebody asked for it, a field a line."""
    if path is not None:
        content = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
        write_whole(path, content, make_folder=True)
