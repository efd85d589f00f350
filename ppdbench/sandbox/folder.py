"""A program's folder as it lies on the disk, where no file system in memory takes its place."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BLOCK = 512


def fuller_than(folder: Path, most_bytes: int, most_entries: int) -> bool:
    """True if more lies in it, or deeper than paths go."""
    used, seen, left = 0, 0, [folder]
    while left:
        try:
            entries = list(os.scandir(left.pop()))
        except (FileNotFoundError, PermissionError):
            continue
        except OSError:
            return True
        for entry in entries:
            seen += 1
            with suppress(FileNotFoundError):
                used += entry.stat(follow_symlinks=False).st_blocks * BLOCK
            if entry.is_dir(follow_symlinks=False):
                left.append(Path(entry.path))
        if used > most_bytes or seen > most_entries:
            return True
    return False


def remove(folder: Path) -> None:
    """Remove it, however deep: folders are moved up to the top before they are emptied."""
    number = 0
    with suppress(OSError):  # what cannot be removed is left
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    Path(entry.path).unlink()
                    continue
                inner = Path(entry.path)
                inner.chmod(0o700)
                for part in inner.iterdir():
                    number += 1
                    part.rename(folder / f"..{number}")
                inner.rmdir()
        folder.rmdir()
