"""Strategies of other packages, found through the entry-point group `ppdbench.strategies`.

An entry point names a module or an object in one; importing it registers its strategies. Reading
entry points is slow to begin with, so that it is done only where some package may have one of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ppdbench.strategies"


def load_plugins() -> dict[str, str]:
    """Import every plugin; those that cannot be, by name, and why.

    One that fails takes nothing else with it.
    """
    if not any(map(_may_have_some, sys.path)):
        return {}
    from importlib.metadata import entry_points

    why = {entry.name: _trouble(entry) for entry in entry_points(group=GROUP)}
    return {name: trouble for name, trouble in why.items() if trouble is not None}


def _may_have_some(place: str) -> bool:
    """True if a package that is installed here names the group; an archive may."""
    folder = Path(place or ".")
    if not folder.is_dir():
        return folder.exists()
    declared = folder.glob("*-info/entry_points.txt")
    return any(GROUP.encode() in path.read_bytes() for path in declared)


def _trouble(entry: EntryPoint) -> str | None:
    """Load one plugin; what went wrong, if anything did."""
    try:
        entry.load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
