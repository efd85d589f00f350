"""Coverage: what has to be prevented before a program may run, and the layers that do it."""

from __future__ import annotations

from collections.abc import Iterable

HELD_BY = {
    "files outside its folder": ("bubblewrap", "own root", "landlock"),
    "modes and times of files, the network and other processes": ("seccomp",),
    "memory and processor time": ("limits",),
}


def unheld(layers: Iterable[str]) -> list[str]:
    """List what none of these layers prevents, each with those that would."""
    present = set(layers)
    return [
        f"{what} (needs {' or '.join(holders)})"
        for what, holders in HELD_BY.items()
        if present.isdisjoint(holders)
    ]
