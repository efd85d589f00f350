"""Strategies of other packages, found through the entry-point group `ppdbench.strategies`.

An entry point names a module or an object in one; importing it registers its strategies.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "ppdbench.strategies"


def load_plugins() -> dict[str, str]:
    """Import every plugin; those that cannot be, by name, and why.

    One that fails takes nothing else with it.
    """
    why = {entry.name: _trouble(entry) for entry in entry_points(group=GROUP)}
    return {name: trouble for name, trouble in why.items() if trouble is not None}


def _trouble(entry: EntryPoint) -> str | None:
    """Load one plugin; what went wrong, if anything did."""
    try:
        entry.load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
