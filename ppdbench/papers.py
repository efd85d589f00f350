"""The numbers that the papers print, as they lie in `results/papers/`: one YAML file a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ppdbench.errors import UnknownName
from ppdbench.resources import folder

Paper = Mapping[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it is built in


def names() -> list[str]:
    """All tables and figures as PAPER/N, those of a paper in its own order."""
    return sorted(_files(), key=lambda name: (name.split("/")[0], len(name), name))


def read(name: str) -> Paper:
    """The printed numbers of one table, and their setting."""
    files = _files()
    if name not in files:
        raise UnknownName("table", name, files)
    content: Paper = yaml.load(files[name].read_text("utf-8"), Loader=LOADER)
    return content


def _files() -> dict[str, Path]:
    """`ppd_table2.yaml` is ppd/2, `ppd_figures.yaml` is ppd/figures."""
    found = {}
    for path in folder("papers").glob("*.yaml"):
        paper, _, number = path.stem.rpartition("_")
        found[f"{paper}/{number.removeprefix('table')}"] = path
    return found
