"""The choice whether passes of few rows ask memory for weights before these are needed.

Processors notice by themselves that one line of memory is read after another, and fetch the next
ones. Some do that better where they are left alone, others where the kernels ask; what is computed
is the same. So passes over weights that outgrow the caches are timed both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ppdbench.engine.flat.native import Library
from ppdbench.machine.clock import Clock
from ppdbench.stats import median

ROWS = (1, 3)  # of the passes that are timed
LEAST_BYTES, ENOUGH_BYTES = 16 << 20, 48 << 20  # of weights: fewer stay in a cache
TURNS = 3


@dataclass(frozen=True, slots=True)
class Asking:
    """Seconds that the passes took where few rows asked ahead, and where they did not."""

    asked_s: float
    left_s: float

    @property
    def few_ask(self) -> bool:
        """True if asking was no slower."""
        return self.asked_s <= self.left_s

    @property
    def words(self) -> str:
        """Words for the choice, with its reason."""
        what = "ask ahead" if self.few_ask else "do not ask ahead"
        times = f"{1e3 * self.asked_s:.2f} ms asking, {1e3 * self.left_s:.2f} ms not"
        return f"few rows {what} for weights: {times}"


def choose(
    native: Library, dtype: torch.dtype, runs: Sequence[Callable[[], object]], clock: Clock
) -> Asking:
    """Time some passes both ways, in turns, and have passes of this type go on the faster way."""
    seconds: dict[bool, list[list[float]]] = {few: [[] for _ in runs] for few in (True, False)}
    for turn in range(TURNS + 1):
        for few in (True, False) if turn % 2 else (False, True):
            native.ask(dtype, few=few)
            for times, run in zip(seconds[few], runs, strict=True):
                began = clock.now()
                run()
                if turn:  # the first is for caches
                    times.append(clock.now() - began)
    asked, left = (sum(map(median, seconds[few])) for few in (True, False))
    found = Asking(asked, left)
    native.ask(dtype, few=found.few_ask)
    return found
