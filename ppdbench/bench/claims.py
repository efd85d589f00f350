"""Claims: the conditions for naming a speedup, and the words in its place where they fail.

Whatever prints, draws, stores or judges a speedup asks here, so that none appears in one place
that another withholds. What was measured stays in the samples; times are shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ppdbench.bench.added_times import closes
from ppdbench.bench.sums import SampleSums
from ppdbench.runs.records import DecodingMethod
from ppdbench.stats import Pair, Ratio, ratio_of_timed, totals_by_key

LEAST_EXAMPLES = 5
Reason = Literal[
    "mismatch",
    "failed examples",
    "not measured",
    "not timed",
    "times do not add up",
    "too few examples",
]
TOO_FEW: Reason = "too few examples"
WHY_TOO_FEW = f"{TOO_FEW.capitalize()}: fewer than {LEAST_EXAMPLES} give times, and no speedup."

Question = tuple[str, str]  # a task and one of its examples


@dataclass(frozen=True, slots=True)
class Speedup:
    """A speedup, or the reason why it may not be claimed."""

    ratio: Ratio | None
    withheld: Reason | None = None

    @property
    def value(self) -> float | None:
        """The ratio of the totals, where it is claimed."""
        return None if self.ratio is None else self.ratio.value

    def figures(self, name: str = "speedup") -> dict[str, Any]:
        """Return the fields for JSON and CSV: nulls and the reason where the claim is withheld."""
        return {
            name: self.value,
            f"{name}_low": self.ratio and self.ratio.low,
            f"{name}_high": self.ratio and self.ratio.high,
            f"{name}_withheld": self.withheld,
        }


@dataclass(frozen=True, slots=True)
class TimedPair:
    """One example or turn, decoded by two methods one after the other, and what is compared."""

    both: tuple[SampleSums, ...]
    """Of greedy beside a method the sample of the method alone: it holds the times of both."""
    times: Pair
    """Two times for as many tokens, greedy's first."""

    @property
    def question(self) -> Question:
        """The example: all turns of a conversation are one."""
        return self.both[0].question

    @property
    def counts(self) -> bool:
        """True if both took a step; an output that ended with its first token took none."""
        return min(self.times) > 0


def over_greedy(one: SampleSums) -> TimedPair:
    """A sample beside the baseline of its run, as if both had given as many tokens."""
    return TimedPair((one,), (one.baseline_step_ms, one.step_ms * one.same_length))


def claim(timed: Sequence[TimedPair], failed: int = 0) -> Speedup:
    """The paired ratio over these examples, if everything about it holds.

    `failed` counts those that a method did not finish: it may be that they were the slow ones.
    """
    reason = doubt(timed, failed)
    return Speedup(None, reason) if reason else Speedup(_ratio(timed))


def times_by_question(timed: Iterable[TimedPair]) -> dict[Question, Pair]:
    """Both times of each example that took a step, the turns of a conversation added up."""
    return totals_by_key((t.question, t.times) for t in timed if t.counts)


def _ratio(timed: Iterable[TimedPair]) -> Ratio | None:
    return ratio_of_timed(list(times_by_question(timed).values()))


def measured(timed: Sequence[TimedPair]) -> float | None:
    """The ratio for a search, which has to go by few examples and claims nothing."""
    ratio = _ratio(timed)
    return None if ratio is None or doubt(timed) == "mismatch" else ratio.value


def enough(*sides: Sequence[Pair | None]) -> bool:
    """True if a speedup may be claimed of times by example alone, on each side of a comparison."""
    return all(
        sum(pair is not None and min(pair) > 0 for pair in side) >= LEAST_EXAMPLES for side in sides
    )


def doubt(timed: Sequence[TimedPair], failed: int = 0) -> Reason | None:
    """Return the gravest reason that forbids a claim; None if there is none."""
    if any(one.verdict == "mismatch" for t in timed for one in t.both):
        return "mismatch"
    if failed:
        return "failed examples"
    if not timed:
        return "not measured"
    examples = len(times_by_question(timed))
    if not examples:
        return "not timed"
    by_method: dict[str, list[SampleSums]] = {}
    for one in (one for t in timed for one in t.both):
        by_method.setdefault(one.method, []).append(one)
    if not all(map(closes, by_method.values())):
        return "times do not add up"
    return TOO_FEW if examples < LEAST_EXAMPLES else None


def noise(repeats: Iterable[Sequence[Pair]]) -> Ratio | None:
    """Return how many times faster or slower greedy decoding may seem than itself.

    Each of `repeats` holds two times of the same work, by example. The interval is the widest of
    all, and as wide below 1 as above it: which of two equal things came out faster is chance.
    With fewer examples than a speedup takes, nothing is known of noise either.
    """
    found = [r for pairs in repeats if (r := _repeated(pairs)) is not None]
    if not found:
        return None
    ends = [end for ratio in found for end in (ratio.value, ratio.low, ratio.high) if end]
    most = max(max(end, 1 / end) for end in ends)
    return Ratio(1.0, 1 / most, most)


def _repeated(pairs: Sequence[Pair]) -> Ratio | None:
    return ratio_of_timed(pairs) if enough(pairs) else None


def noise_of(methods: Mapping[str, DecodingMethod], sums: Sequence[SampleSums]) -> Ratio | None:
    """The noise of samples: every time that greedy decoding took, against every other one."""
    by_label: dict[str, list[SampleSums]] = {}
    for one in sums:
        if not one.failed:
            by_label.setdefault(one.method, []).append(one)
    repeats: list[list[TimedPair]] = []
    for label, group in by_label.items():
        repeats.append([TimedPair((one,), (one.baseline_step_ms, one.again_ms)) for one in group])
        if methods[label].name == "greedy":
            as_method = [over_greedy(one) for one in group]
            repeats.append(as_method)
            repeats.append([TimedPair(t.both, (t.both[0].again_ms, t.times[1])) for t in as_method])
    return noise(list(times_by_question(timed).values()) for timed in repeats)


def no_difference(summary: Mapping[str, Any]) -> bool:
    """True if noise could have made a speedup: by its interval, or greedy against itself."""
    value, low, high = (summary[f"speedup{end}"] for end in ("", "_low", "_high"))
    if value is None:
        return False
    return within_noise(
        Ratio(value, low, high), Ratio(1.0, summary["noise_low"], summary["noise_high"])
    )


def within_noise(speedup: Ratio, noise: Ratio | None) -> bool:
    """The same of a ratio that has no summary."""
    return _holds(speedup, 1) or (noise is not None and _holds(noise, speedup.value))


def _holds(interval: Ratio, value: float) -> bool:
    if interval.low is None or interval.high is None:
        return False
    return interval.low <= value <= interval.high
