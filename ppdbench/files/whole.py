"""Files that are written whole: beside what was there before, then put in its place.

A full disk, a kill or a mistake in the middle of writing leaves the file as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ppdbench.errors import ConfigError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be written; it takes the place of `path` once it is whole.

    A link stays a link, to a file with the new content. What is no file (a pipe, /dev/stdout) has
    nothing to lose and is written as it stands.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    partial = target.with_name(f"{target.name}.part")
    try:
        yield partial
        _settle(partial)
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):  # a full disk needs the room, and nobody the half of a file
            partial.unlink(missing_ok=True)
        raise


def _settle(partial: Path) -> None:
    """Have the system write all of it: some full disks are noticed no sooner."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, its folder too if need be; whoever reads it finds all or what was there."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another place") from error
