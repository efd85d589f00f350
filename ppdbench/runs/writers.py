"""Writers of a run folder: one process, or the ranks or jobs of one run, which share it.

Each holds a lock on its own file of samples as long as it lives; however it ends, the system
lets go of it. `.lock` is held only while somebody comes in or looks round, and says which
group is inside and how often each of its ranks has waited for the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from ppdbench.errors import DataError
from ppdbench.files.lock import LOCK, unwritable, written_by_others
from ppdbench.runs.samples import sample_path, sample_paths
from ppdbench.runs.shards import Shard

# The longest wait for the process that holds `.lock`, which may be reading a large run, and for a
# rank that has yet to load its model.
PATIENCE_S = 600.0
DELAY_S = 0.1


def take(file: IO[Any]) -> bool:
    """Lock an open file, unless somebody else has."""
    return lock_descriptor(file.fileno(), blocking=False)


def is_written(path: Path) -> bool:
    """True if some process holds a file of samples."""
    try:
        # Over a network only what may be written can be locked.
        with path.open("r+b") as file:
            return not take(file)
    except FileNotFoundError:
        return False
    except OSError:
        return True


@dataclass(slots=True)
class LockContent:
    """The content of `.lock`."""

    group: str = ""
    met: dict[int, int] = field(default_factory=dict)  # by rank; those that came in are there

    @classmethod
    def read(cls, file: IO[str]) -> LockContent:
        """An empty one where nothing sensible stands."""
        try:
            file.seek(0)
            content = json.load(file)
            met = {int(rank): int(n) for rank, n in content["met"].items()}
            return cls(str(content["group"]), met)
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, file: IO[str]) -> None:
        """Replace what stood there."""
        file.seek(0)
        file.truncate()
        json.dump({"group": self.group, "met": self.met}, file)
        file.flush()


@contextmanager
def lock_run(folder: Path) -> Iterator[LockContent]:
    """Hold `.lock` and yield its content; changes are written."""
    try:
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise unwritable(folder, error) from error
    with file:
        until = time.monotonic() + PATIENCE_S
        while not take(file):
            if time.monotonic() > until:
                raise written_by_others(folder)
            time.sleep(DELAY_S)
        content = LockContent.read(file)
        before = replace(content, met=dict(content.met))
        yield content
        if content != before:
            content.write(file)


def claim_turn(folder: Path, shard: Shard, content: LockContent) -> bool:
    """True if it is this process's turn to write; the first one in clears the content.

    A rank waits for the first of its launch.
    """
    inside = [path for path in sample_paths(folder) if is_written(path)]
    ours = (shard.is_job or shard.follows) and content.group == shard.group
    if inside and (sample_path(folder, shard) in inside or not ours):
        raise written_by_others(folder)
    if shard.follows and sample_path(folder, replace(shard, index=0)) not in inside:
        return False
    if not inside:
        content.group, content.met = shard.group, {}
    content.met[shard.index] = 0
    return True


class Companions:
    """The other ranks of a launch, as one of them sees them through the folder."""

    def __init__(self, folder: Path, shard: Shard) -> None:
        self.folder, self.shard = folder, shard
        self._until = time.monotonic() + PATIENCE_S

    def at_work(self, content: LockContent) -> list[int]:
        """List the ranks that have not ended. One that never came in counts until patience ends."""
        return [
            rank
            for rank in range(self.shard.count)
            if rank != self.shard.index and self._at_work(rank, content)
        ]

    def _at_work(self, rank: int, content: LockContent) -> bool:
        if rank not in content.met:
            return time.monotonic() < self._until
        return is_written(sample_path(self.folder, replace(self.shard, index=rank)))

    def wait_for_ends(self) -> None:
        """Wait until no other rank is left."""
        while True:
            with lock_run(self.folder) as content:
                if not self.at_work(content):
                    return
            time.sleep(DELAY_S)

    def meet(self) -> None:
        """Wait until all have come as far as this one; an error if one of them ended before."""
        with lock_run(self.folder) as content:
            content.met[self.shard.index] += 1
            mine = content.met[self.shard.index]
        while True:
            with lock_run(self.folder) as content:
                behind = {r for r in range(self.shard.count) if content.met.get(r, 0) < mine}
                if not behind:
                    return
                if behind.difference(self.at_work(content)):
                    raise DataError(
                        f"a rank ended while others waited for it; finished examples are kept in "
                        f"{self.folder}, continue with --resume"
                    )
            time.sleep(DELAY_S)
