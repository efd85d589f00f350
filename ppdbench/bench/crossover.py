"""The crossover: the size of a batch from which on a method no longer pays.

A pass over few rows takes as long as reading the weights, so drafted rows are nearly free; in a
batch rows of other sequences take their place. Where the speedup over greedy decoding in a batch
of the same size falls below 1 is read off between the sizes that were measured. The time of passes
predicts the same (`bench/predicted.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

from ppdbench.bench.claims import (
    LEAST_EXAMPLES,
    TOO_FEW,
    TimedPair,
    doubt,
    over_greedy,
    times_by_question,
    within_noise,
)
from ppdbench.bench.counterparts import is_greedy
from ppdbench.bench.labels import label_alone
from ppdbench.bench.predicted import predicted_speedups
from ppdbench.bench.sums import SampleSums
from ppdbench.runs.records import DecodingMethod, PassModel
from ppdbench.stats import Crossing, Ratio, crossing, ratio_of_timed

NO_DIFFERENCE = "no difference at any size"
UNKNOWN: Mapping[str, Ratio | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Crossover:
    """The crossover of one method, or the reason why none is told.

    `predicted` are its speedups by size as the time of passes has them, where that was measured.
    """

    label: str
    sizes: tuple[int, ...]
    found: Crossing | None
    withheld: str | None = None
    predicted: Mapping[int, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The crossover in a few words."""
        return str(self.withheld) if self.found is None else _words(self.found.value, self.sizes)

    @property
    def interval(self) -> str:
        """The interval that it lies in; ends beyond the sizes that were measured are open."""
        if self.found is None:
            return "-"
        return f"[{self._end(self.found.low)}, {self._end(self.found.high)}]"

    def _end(self, at: float) -> str:
        if at == 0:
            return f"<{self.sizes[0]}"
        return f"{at:.1f}" if isfinite(at) else f">{self.sizes[-1]}"

    @property
    def foretold(self) -> float | None:
        """The crossover of the speedups that are predicted, as `Crossing` has it."""
        if len(self.predicted) < 2:
            return None
        speedups = [[self.predicted[size]] for size in sorted(self.predicted)]
        return crossing(sorted(self.predicted), speedups, [[1.0]] * len(speedups), draws=1).value

    def figures(self, size: int) -> dict[str, Any]:
        """Return the fields for JSON and CSV, in each row of the method.

        Numbers are null where they lie beyond the sizes that were measured; the words say where.
        """
        numbers = {"batch": 0.0, "low": 0.0, "high": 0.0}
        if self.found is not None:
            ends = self.found.value, self.found.low, self.found.high
            numbers = dict(zip(numbers, ends, strict=True))
        foretold = self.foretold
        numbers["predicted_batch"] = foretold or 0.0
        return {
            "crossover": self.words,
            "crossover_interval": self.interval,
            "crossover_predicted": None
            if foretold is None
            else _words(foretold, sorted(self.predicted)),
            **{f"crossover_{n}": at if 0 < at < inf else None for n, at in numbers.items()},
            "predicted_speedup": self.predicted.get(size),
        }


def _words(at: float, sizes: Sequence[int]) -> str:
    if at == 0:
        return f"pays at no size from {sizes[0]} on"
    return f"pays up to {f'{at:.1f}' if isfinite(at) else f'{sizes[-1]} at least'}"


def crossovers(
    methods: Mapping[str, DecodingMethod],
    sums: Sequence[SampleSums],
    model: PassModel | None = None,
    noise: Mapping[str, Ratio | None] = UNKNOWN,
) -> dict[str, Crossover]:
    """The crossover of each method that decoded in batches of several sizes, by each label.

    `noise` is that beside each label: where it could have made every speedup, none is told.
    """
    found: dict[str, Crossover] = {}
    for alone, labels in _families(methods):
        measured = _crossover(alone, labels, sums, noise)
        told = replace(measured, predicted=predicted_speedups(model, labels, sums))
        found |= dict.fromkeys(labels.values(), told)
    return found


def _families(methods: Mapping[str, DecodingMethod]) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield each method with its labels by the size of the batch."""
    labels: dict[str, dict[int, str]] = {}
    for label, about in methods.items():
        if not is_greedy(about.name):
            labels.setdefault(label_alone(label, about.batch), {})[about.batch] = label
    yield from ((alone, of) for alone, of in labels.items() if len(of) > 1)


def _crossover(
    alone: str,
    labels: Mapping[int, str],
    sums: Sequence[SampleSums],
    noise: Mapping[str, Ratio | None],
) -> Crossover:
    sizes = tuple(sorted(labels))
    timed = [_timed(labels[size], sums) for size in sizes]
    if (reason := doubt([pair for of in timed for pair in of])) is not None:
        return Crossover(alone, sizes, None, reason)
    times = [times_by_question(of) for of in timed]
    shared = sorted(example for example in times[0] if all(example in of for of in times))
    if len(shared) < LEAST_EXAMPLES:
        return Crossover(alone, sizes, None, TOO_FEW)
    ratios = zip(map(ratio_of_timed, (list(of.values()) for of in times)), sizes, strict=True)
    if all(
        ratio is not None and within_noise(ratio, noise.get(labels[size])) for ratio, size in ratios
    ):
        return Crossover(alone, sizes, None, NO_DIFFERENCE)
    greedy, ours = ([[of[e][side] for e in shared] for of in times] for side in (0, 1))
    return Crossover(alone, sizes, crossing(sizes, greedy, ours))


def _timed(label: str, sums: Sequence[SampleSums]) -> list[TimedPair]:
    """Greedy's time and the method's of each example, in batches of one size."""
    return [over_greedy(s) for s in sums if s.method == label and not s.failed]
