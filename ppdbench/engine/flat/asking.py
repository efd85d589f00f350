"""The choice which passes of few rows ask memory for weights before these are needed.

Processors notice by themselves that one line of memory is read after another, and fetch the next
ones. Some do that better where they are left alone, others where the kernels ask, and many rows
at once leave them less time to notice; what is computed is the same. So passes over weights that
outgrow the caches are timed both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ppdbench.engine.flat.native import Library
from ppdbench.machine.clock import Clock
from ppdbench.stats import median

ROWS = (1, 3)  # of the passes that are timed: two do as one does, a few as three
LEAST_BYTES, ENOUGH_BYTES = 16 << 20, 48 << 20  # of weights: fewer stay in a cache
TURNS, ENOUGH_TURNS = 4, 2  # at most, and where they leave no doubt


@dataclass(frozen=True, slots=True)
class Asking:
    """Seconds of passes of one row and of three where they asked ahead, and where they did not."""

    asked_s: tuple[float, float]
    left_s: tuple[float, float]

    @property
    def two(self) -> bool:
        """True if asking was no slower for one row: so one or two ask."""
        return self.asked_s[0] <= self.left_s[0]

    @property
    def more(self) -> bool:
        """True if asking was no slower for three: so a few more than two ask."""
        return self.asked_s[1] <= self.left_s[1]

    @property
    def words(self) -> str:
        """Words for the choice, with its reason."""
        if self.two == self.more:
            what = f"few rows {'ask' if self.two else 'do not ask'} ahead for weights"
        else:
            which = "one or two" if self.two else "three or more"
            what = f"few rows ask ahead for weights where they are {which}"
        asked, left = (
            " and ".join(f"{1e3 * seconds:.2f}" for seconds in times)
            for times in (self.asked_s, self.left_s)
        )
        return f"{what}: {asked} ms asking, {left} ms not"


def choose(
    native: Library, dtype: torch.dtype, runs: Sequence[Callable[[], object]], clock: Clock
) -> Asking:
    """Time passes both ways, in turns, and have passes of this type go on the faster way.

    One of one row, and one of three.
    """
    seconds: dict[bool, list[list[float]]] = {ask: [[] for _ in runs] for ask in (True, False)}
    for turn in range(TURNS + 1):
        if turn > ENOUGH_TURNS and _is_clear(seconds):
            break
        for ask in (True, False) if turn % 2 else (False, True):
            native.ask(dtype, two=ask, more=ask)
            for times, run in zip(seconds[ask], runs, strict=True):
                began = clock.now()
                run()
                if turn:  # the first is for caches
                    times.append(clock.now() - began)
    (asked_one, asked_three), (left_one, left_three) = (
        map(median, seconds[ask]) for ask in (True, False)
    )
    found = Asking((asked_one, asked_three), (left_one, left_three))
    native.ask(dtype, two=found.two, more=found.more)
    return found


def _is_clear(seconds: Mapping[bool, Sequence[Sequence[float]]]) -> bool:
    """True if for each number of rows all passes of one way were faster than any of the other."""
    pairs = zip(seconds[True], seconds[False], strict=True)
    return all(max(asked) < min(left) or max(left) < min(asked) for asked, left in pairs)
