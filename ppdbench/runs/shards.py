"""Shards: the part of a run's examples that a process works on, where several share a run.

Either torchrun started them as ranks, of which the first leads: it writes the header and
prints what all of them found. Or they are jobs that know nothing of each other but their number
and how many there are, such as those of a Slurm array.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from ppdbench.errors import ConfigError

if TYPE_CHECKING:
    from ppdbench.runs.workload import Item
    from ppdbench.tasks.examples import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of one process; by default all of it."""

    index: int = 0
    count: int = 1
    launch: str | None = None  # a name that the ranks of one launch share; jobs have none
    on_machine: int | None = 1  # how many of them share this machine, where that is known

    @classmethod
    def launched(cls) -> Shard:
        """Return the shard that torchrun, or what sets the same variables, gives this process."""
        told = os.environ.get
        count = int(told("WORLD_SIZE", "1"))
        if count == 1:
            return ALONE
        local = int(told("LOCAL_WORLD_SIZE", str(count)))
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        launch = _hash(" ".join(told(name, "") for name in names)).hex()
        return cls(index=int(told("RANK", "0")), count=count, launch=launch, on_machine=local)

    @classmethod
    def job(cls, text: str) -> Shard:
        """`3/8`: the third of eight jobs."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"--shard {text!r}: use I/N, such as 1/8 for the first of 8 jobs")
        return cls(index=int(found[1]) - 1, count=int(found[2]), on_machine=None)

    @property
    def alone(self) -> bool:
        """True if nobody else works on the run."""
        return self.count == 1 and self.on_machine is not None

    @property
    def leads(self) -> bool:
        """True if other ranks wait for this one to begin, and this one for them to end."""
        return self.launch is not None and self.index == 0

    @property
    def follows(self) -> bool:
        """True if another rank speaks for this one."""
        return self.launch is not None and self.index > 0

    @property
    def is_job(self) -> bool:
        """True if it comes and goes without regard to the others."""
        return self.launch is None and not self.alone

    @property
    def group(self) -> str:
        """The name common to all who may write into one folder at a time."""
        return f"{self.count} {'jobs' if self.is_job else f'ranks of {self.launch}'}"

    def part(self, items: Sequence[Item]) -> list[Item]:
        """The examples of this process, in their order; turns of one question stay together.

        So parts are equal in number and as good as equal in work, however long and short examples
        stand.
        """
        questions = {_question(item): item for item in map(_first_turn, items)}
        dealt = self._dealt((item.task.name, item.example) for item in questions.values())
        ours = set(dealt[self.index])
        return [item for item in items if _question(_first_turn(item)) in ours]

    def fewest(self, work: Iterable[tuple[str, Example]]) -> dict[str, int]:
        """The examples of each task in work [task, example] that any process gets at least."""
        dealt = [Counter(task for task, _ in part) for part in self._dealt(work)]
        return {task: min(part[task] for part in dealt) for task in set[str]().union(*dealt)}

    def _dealt(self, work: Iterable[tuple[str, Example]]) -> list[list[tuple[str, str]]]:
        """Deal out task and name of examples, to every process its part.

        It is done in rounds, one to each, task by task and the longest first; in each round a hash
        of their names decides who gets which.
        """
        # Examples next to each other by this take about as long.
        kinds = {(task, each.id): (task, -len(each.prompt.text)) for task, each in work}
        order = sorted(kinds, key=lambda name: (kinds[name], _hash("\0".join(name))))
        rounds = [order[first : first + self.count] for first in range(0, len(order), self.count)]
        sorted_rounds = [sorted(each, key=lambda name: _hash("\0".join(name))) for each in rounds]
        return [
            [each[index] for each in sorted_rounds if index < len(each)]
            for index in range(self.count)
        ]


ALONE = Shard()


def _question(item: Item) -> tuple[str, str]:
    return item.task.name, item.example.id


def _first_turn(item: Item) -> Item:
    while item.after is not None:
        item = item.after
    return item


def _hash(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8).digest()
