"""Every way that random choices can fall, with its exact probability.

The rule under test runs again and again; each time its choices are told to it, in the order of a
search through the tree of all of them. Nothing is drawn, so nothing is left to luck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from ppdbench.decoding import verify

T = TypeVar("T", bound=Hashable)


@dataclass
class Choices:
    """The choices of one pass through the tree: those that are told, then the first of each."""

    told: list[int]
    made: list[int] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)
    probability: float = 1.0

    def among(self, probabilities: Sequence[float]) -> int:
        """One of the outcomes that are possible."""
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        place = len(self.made)
        turn = self.told[place] if place < len(self.told) else 0
        self.made.append(turn)
        self.ways.append(len(possible))
        self.probability *= probabilities[possible[turn]]
        return possible[turn]


class Threshold(float):
    """A uniform number that is not settled: a comparison decides on which side it lies.

    As `u * q < p` compares it: with probability p / q, or 1.
    """

    choices: Choices
    scale: float = 1.0

    def __mul__(self, q: float) -> Threshold:
        self.scale *= q
        return self

    def __lt__(self, p: float) -> bool:
        kept = min(1.0, p / self.scale) if self.scale else float(p > 0)
        return self.choices.among([kept, 1 - kept]) == 0


def every_way(run: Callable[[Choices], T]) -> Iterator[tuple[T, float]]:
    """Each result of a function that asks for choices, with its probability."""
    told: list[int] | None = []
    while told is not None:
        choices = Choices(told)
        result = run(choices)
        yield result, choices.probability
        told = _next(choices)


def _next(choices: Choices) -> list[int] | None:
    made = list(choices.made)
    while made and made[-1] + 1 == choices.ways[len(made) - 1]:
        made.pop()
    if not made:
        return None
    made[-1] += 1
    return made


def distribution(patch: pytest.MonkeyPatch, run: Callable[[Choices], T]) -> dict[T, float]:
    """The exact probabilities of what a function that verifies drafts returns."""
    found: dict[T, float] = defaultdict(float)

    def told(choices: Choices) -> T:
        def uniform(generator: torch.Generator) -> Threshold:
            number = Threshold(0.5)
            number.choices = choices
            return number

        def drawn(p: Tensor, generator: torch.Generator) -> int:
            return choices.among((p / p.sum()).tolist())  # as a draw scales

        patch.setattr(verify, "uniform", uniform)
        patch.setattr(verify, "drawn", drawn)
        return run(choices)

    for result, probability in every_way(told):
        found[result] += probability
    return dict(found)
