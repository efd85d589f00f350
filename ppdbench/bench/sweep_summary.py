"""The best setting of a stored sweep; no model, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.bench.claims import (
    LEAST_EXAMPLES,
    Question,
    no_difference,
    over_greedy,
    times_by_question,
)
from ppdbench.bench.grid import TEMPERATURE
from ppdbench.bench.halving import expected_samples
from ppdbench.bench.summary import overall
from ppdbench.bench.sums import SampleSums
from ppdbench.errors import DataError
from ppdbench.runs.records import DecodingMethod, Header, Stage, SweepHeader
from ppdbench.stats import Ratio, paired_ratio

BATCH = "batch"  # beside the options that cells differ in


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting, where it lies in the grid, and what was measured there."""

    label: str
    at: Mapping[str, Any]
    summary: Mapping[str, Any] | None  # None: nothing was
    error: str | None = None

    @property
    def speedup(self) -> float | None:
        """Over greedy decoding; None where it is withheld."""
        return None if self.summary is None else self.summary["speedup"]

    @property
    def examples(self) -> int:
        """The number of examples it was measured on."""
        return self.summary["n_examples"] if self.summary else 0

    @property
    def standing(self) -> str:
        """A word or two on how it compares with greedy decoding."""
        if self.summary is None:
            return "not run"
        withheld: str | None = self.summary["speedup_withheld"]
        if self.summary["failed"] and withheld != "mismatch":
            return "failed"
        if withheld is not None:
            return withheld
        if no_difference(self.summary):
            return "no difference"
        return "faster" if (self.speedup or 0.0) > 1 else "slower"


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep as read back, its cells from the best to the worst."""

    header: SweepHeader
    axes: Mapping[str, tuple[Any, ...]]
    rungs: tuple[Stage, ...]
    cells: tuple[Cell, ...]
    lead: Ratio | None  # how many times faster the best is than the second, by example
    complete: bool

    @property
    def summaries(self) -> list[Mapping[str, Any]]:
        """The cells' summaries, from the best to the worst."""
        return [cell.summary for cell in self.cells if cell.summary is not None]

    @property
    def leaders(self) -> tuple[Cell, ...]:
        """The cells with a speedup on the most examples, which alone can be the best."""
        timed = [cell for cell in self.cells if cell.speedup is not None]
        return tuple(cell for cell in timed if cell.examples == timed[0].examples)

    @property
    def distinguishable(self) -> bool:
        """True if the best is faster than the second beyond what examples vary."""
        return self.lead is not None and self.lead.low is not None and self.lead.low > 1

    def best_at(self, place: Mapping[str, Any]) -> Cell:
        """The best of the cells with these values."""
        return next(c for c in self.cells if all(c.at[k] == v for k, v in place.items()))


def swept(header: Header, sums: Sequence[SampleSums]) -> Swept:
    """Read what a sweep found; of an unfinished one, what it found so far."""
    if not isinstance(header, SweepHeader):
        raise DataError(f"a run of `ppdbench {header.kind}` is no sweep")
    if not sums:
        raise DataError("the run holds no finished samples")
    summaries = {s["label"]: s for s in overall(header, sums)}
    names = list(header.config.space.axes)
    together = max(about.batch for about in header.methods.values()) > 1
    cells = tuple(
        Cell(
            label,
            {name: _setting(about, name) for name in names}
            | ({BATCH: about.batch} if together else {}),
            summaries.get(label),
            header.not_run.get(label),
        )
        for label, about in header.methods.items()
    )
    axes = {name: tuple(dict.fromkeys(cell.at[name] for cell in cells)) for name in cells[0].at}
    ordered = tuple(sorted(cells, key=_rank))
    lead = _lead(ordered, sums)
    complete = len(sums) >= expected_samples(header)
    return Swept(header, axes, tuple(header.rungs), ordered, lead, complete)


def _setting(about: DecodingMethod, name: str) -> Any:
    return about.temperature if name == TEMPERATURE else about.options[name]


def _rank(cell: Cell) -> tuple[bool, int, float]:
    """Speeds count on the most examples: those who were left behind had been slower there.

    What has no speedup comes last, by its tokens per second.
    """
    pace = cell.summary["tokens_per_s"] if cell.summary else None
    return cell.speedup is None, -cell.examples, -(cell.speedup or pace or 0.0)


def _lead(ordered: Sequence[Cell], sums: Sequence[SampleSums]) -> Ratio | None:
    """The best against the second, each beside its own baseline: they may be of two heats."""
    if len(ordered) < 2 or ordered[1].speedup is None or ordered[1].examples < ordered[0].examples:
        return None
    best, second = (_relative_times(sums, cell.label) for cell in ordered[:2])
    shared = [example for example in best if example in second]
    if len(shared) < LEAST_EXAMPLES:
        return None
    weights = [best[example][1] for example in shared]
    return paired_ratio(
        [second[example][0] * weight for example, weight in zip(shared, weights, strict=True)],
        [best[example][0] * weight for example, weight in zip(shared, weights, strict=True)],
    )


def _relative_times(sums: Sequence[SampleSums], label: str) -> dict[Question, tuple[float, float]]:
    """Return the time per token over the baseline's, and the baseline's time, by example."""
    ours = [over_greedy(one) for one in sums if one.method == label and not one.failed]
    return {
        question: (ours_ms / theirs_ms, theirs_ms)
        for question, (theirs_ms, ours_ms) in times_by_question(ours).items()
    }
