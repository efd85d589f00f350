"""What has to be held before a program may run, and which layers hold it."""

from __future__ import annotations

from collections.abc import Iterable

HELD_BY = {
    "files outside its folder": ("bubblewrap", "own root", "landlock"),
    "modes and times of files, the network and other processes": ("seccomp",),
    "memory and processor time": ("limits",),
}


def unheld(layers: Iterable[str]) -> list[str]:
    """What none of these layers holds, each with those that would."""
    present = set(layers)
    return [
        f"{what} (needs {' or '.join(holders)})"
        for what, holders in HELD_BY.items()
        if present.isdisjoint(holders)
    ]
