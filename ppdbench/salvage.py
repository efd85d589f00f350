"""Taking damaged lines out of a run folder; what they held is done again on the next resume."""

from __future__ import annotations

import shutil
from itertools import chain, count
from pathlib import Path

from ppdbench.errors import ConfigError
from ppdbench.files.whole import replacing
from ppdbench.samples import parse, sample_paths
from ppdbench.store import read_header
from ppdbench.writers import door, is_written, written_by_others


def salvage(folder: Path) -> int:
    """Drop the lines that cannot be read, and say how many; the file as it was stays beside it."""
    read_header(folder)
    with door(folder):
        paths = sample_paths(folder)
        if any(map(is_written, paths)):
            raise written_by_others(folder)
        return sum(map(_salvage, paths))


def _salvage(path: Path) -> int:
    with path.open("rb") as file:
        dropped = sum(parse(line) is None for line in file)
    if not dropped:
        return 0
    try:
        shutil.copy2(path, _beside(path))
        with replacing(path) as partial, path.open("rb") as file, partial.open("wb") as kept:
            kept.writelines(line for line in file if parse(line) is not None)
    except OSError as error:
        raise ConfigError(f"cannot write to {path.parent}: {error.strerror}") from error
    return dropped


def _beside(path: Path) -> Path:
    """A name for the damaged file that no other has."""
    marks = chain([""], (f"-{i}" for i in count(2)))
    return next(p for m in marks if not (p := Path(f"{path}.damaged{m}")).exists())
