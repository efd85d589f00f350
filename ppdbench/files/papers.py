"""The numbers that papers print, and which paper prints them.

The numbers lie in `results/papers/`, one YAML file a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdbench.errors import UnknownName
from ppdbench.files.publications import TABLED, Publication
from ppdbench.files.resources import folder
from ppdbench.files.yaml_file import read_own

Paper = Mapping[str, Any]

# What papers call otherwise than the files in tasks/.
TASKS = {"wmt": "wmt_en_fr", "cnn_dm": "cnn_dailymail"}


def names() -> list[str]:
    """All tables and figures as PAPER/N, those of a paper in its own order."""
    return sorted(_files(), key=lambda name: (name.split("/")[0], len(name), name))


def paper_of(name: str) -> Publication:
    """The paper that prints a table."""
    return TABLED[name.partition("/")[0]]


def our_task(name: str) -> str:
    """Our name of a paper's task."""
    return TASKS.get(name, name)


def read_paper(name: str) -> Paper:
    """The printed numbers of one table, and their setting."""
    files = _files()
    if name not in files:
        raise UnknownName("table", name, files)
    content: Paper = read_own(files[name])
    return content


def _files() -> dict[str, Path]:
    """`ppd_table2.yaml` is ppd/2, `ppd_figures.yaml` is ppd/figures."""
    found = {}
    for path in folder("papers").glob("*.yaml"):
        paper, _, number = path.stem.rpartition("_")
        found[f"{paper}/{number.removeprefix('table')}"] = path
    return found
