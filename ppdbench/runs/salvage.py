"""Taking damaged lines out of a run folder; what they held is done again on the next resume."""

from __future__ import annotations

import shutil
from itertools import chain, count
from pathlib import Path

from ppdbench.errors import ConfigError
from ppdbench.files.lock import written_by_others
from ppdbench.files.whole import replacing
from ppdbench.runs.samples import opened, parse_sample, sample_paths
from ppdbench.runs.store import read_run_header
from ppdbench.runs.validation import Unsound
from ppdbench.runs.writers import is_written, lock_run


def salvage(folder: Path) -> int:
    """Drop the lines that cannot be read, and say how many; the file as it was stays beside it."""
    kind = read_run_header(folder).kind
    with lock_run(folder):
        paths = sample_paths(folder)
        if any(map(is_written, paths)):
            raise written_by_others(folder)
        return sum(_salvage(path, kind) for path in paths)


def _salvage(path: Path, kind: str) -> int:
    with opened(path) as file:
        dropped = sum(not _is_sound(line, kind) for line in file)
    if not dropped:
        return 0
    try:
        shutil.copy2(path, _beside(path))
        with replacing(path) as partial, path.open("rb") as file, partial.open("wb") as kept:
            kept.writelines(line for line in file if _is_sound(line, kind))
    except OSError as error:
        raise ConfigError(f"cannot write to {path.parent}: {error.strerror}") from error
    return dropped


def _is_sound(line: bytes, kind: str) -> bool:
    try:
        parse_sample(line, kind)
    except Unsound:
        return False
    return True


def _beside(path: Path) -> Path:
    """A name for the damaged file that no other has."""
    marks = chain([""], (f"-{i}" for i in count(2)))
    return next(p for m in marks if not (p := Path(f"{path}.damaged{m}")).exists())
