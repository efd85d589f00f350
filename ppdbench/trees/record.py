"""The record of where a method's guesses were right: ranks for every output and distance.

At each place of an output the method guesses several tokens ahead. Which of its guesses the
model then came to is a rank, 0 the likeliest, and a character: `0` to `9` and `a` to `v` for
ranks 0 to 31, `.` where none of so many was right. Place 0 is that of the output's first token,
at which distance 1 is the second one; the guesses at distance d end d tokens before the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ppdbench.errors import ConfigError
from ppdbench.trees.tree import Node

DIGITS = "0123456789abcdefghijklmnopqrstuv"
RANKS = len(DIGITS)  # that trees are grown from
BEYOND = "."


@dataclass(frozen=True)
class RankedOutput:
    """The ranks of one output's tokens among the guesses, `ranks[j][i]` at distance j + 1."""

    task: str
    ranks: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.ranks or not self.ranks[0]:
            raise ConfigError("an output has no ranks; list a text for each distance")
        for j, line in enumerate(self.ranks):
            if strange := set(line) - {*DIGITS, BEYOND}:
                raise ConfigError(
                    f"ranks at distance {j + 1} hold {min(strange)!r}; use 0-9, a-v and ."
                )
            if len(line) != max(0, self.tokens - j):
                raise ConfigError(
                    f"{len(line)} ranks at distance {j + 1}, where {self.tokens} at distance 1 "
                    f"leave {max(0, self.tokens - j)}"
                )

    @property
    def tokens(self) -> int:
        """The number of tokens behind the first, which the prompt alone gives."""
        return len(self.ranks[0])

    @cached_property
    def paths(self) -> tuple[Node, ...]:
        """Follow the text through the guesses from each place on, until it leaves
        them: a node of a tree is accepted there if this begins with its path.
        """
        ways: list[Node] = []
        for place in range(self.tokens):
            line = "".join(ranks[place] for ranks in self.ranks if place < len(ranks))
            ways.append(tuple(map(DIGITS.index, line.partition(BEYOND)[0])))
        return tuple(ways)

    @property
    def counts(self) -> list[list[int]]:
        """The counts of each rank being right, by distance, where all distances have a token."""
        n = len(self.ranks[-1])
        return [[line[:n].count(digit) for digit in DIGITS] for line in self.ranks]

    @classmethod
    def of(cls, task: str, ranks: Sequence[Sequence[int]]) -> RankedOutput:
        """Ranks as they were counted, by distance."""
        # Earlier versions counted each distance only where the farthest one has a token.
        tokens = max((len(line) + j for j, line in enumerate(ranks) if line), default=0)
        lines = ("".join(map(_digit, line)) for line in ranks)
        return cls(task, tuple(line.ljust(tokens - j, BEYOND) for j, line in enumerate(lines)))


def _digit(rank: int) -> str:
    return DIGITS[rank] if rank < RANKS else BEYOND
