"""The claims in the text of "Hardware-Aware Parallel Prompt Decoding" in numbers, and ours.

Speedups, sizes and accuracies against Medusa are measured by the recipe. Claims about ablations
are those of Tables 2 to 8: they are answered where the runs of these tables are given too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.papers import Paper
from ppdbench.probe.accuracy import accuracies
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables import decoded
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.prompt_ppd import COMPARISON
from ppdbench.tables.recipe import RecipeStep
from ppdbench.tables.variants import METHOD, TASK, TOKENS, Variant, variants

Number = float | None
Span = tuple[float, float]  # the smallest and the largest; both the same where there is one value
Claim = tuple[str, Number, Number, Number, Number, Number, str]

MT_BENCH, EXACT_TASKS = "mt_bench", ("humaneval", "gsm8k")
PAIR = "--method medusa --method prompt-tokens"
SPEEDUPS = RecipeStep(
    "prompt-ppd-speedups", f"bench --task humaneval --task gsm8k --method greedy {PAIR}"
)
GUESSES = RecipeStep(
    "prompt-ppd-guesses", f"probe --what drafts --task {TASK} --max-new-tokens {TOKENS} {PAIR}"
)
TASKS = (MT_BENCH, *EXACT_TASKS, TASK)
MEDUSA, TOP = "medusa", 10


@dataclass(frozen=True)
class ClaimMeasures:
    """The figures of runs that claims are about."""

    runs: Sequence[StoredRun]

    @cached_property
    def by_method(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Decoding by task and method, of the two that claims are about."""
        both = [s for s in decoded.summaries(self.runs) if s["method"] in (MEDUSA, METHOD)]
        return decoded.one_each(both, lambda s: (s["task"], s["method"]))

    @cached_property
    def guesses(self) -> dict[tuple[str, int, int], float]:
        """Accuracy by method, distance and k, of runs that probed both methods."""
        return {
            (a.method, a.distance, a.k): a.accuracy
            for run in _guessing(self.runs)
            for a in accuracies([s for s in run.samples if s.task == TASK])
        }

    @cached_property
    def variants(self) -> list[Variant]:
        """Prompt tokens of the ablations, where their runs are there."""
        try:
            return variants(self.runs)
        except DataError:
            return []

    def speedups(self, tasks: Sequence[str]) -> Span | None:
        """Return the speedups of prompt tokens over greedy decoding."""
        found = [self.by_method.get((task, METHOD)) for task in tasks]
        return _span([decoded.speedup(s) for s in found if s is not None])

    def over_medusa(self) -> Span | None:
        """Return the speedup of prompt tokens over Medusa, on MT-Bench."""
        ours, theirs = (self.by_method.get((MT_BENCH, m)) for m in (METHOD, MEDUSA))
        if ours is None or theirs is None or not (ours["speedup"] and theirs["speedup"]):
            return None
        return _one(ours["speedup"] / theirs["speedup"] - 1)

    def fact(self, find: Callable[[Mapping[str, Any]], float]) -> Span | None:
        """Something that a decoding run wrote down of prompt tokens."""
        for (_, method), summary in self.by_method.items():
            if method == METHOD and decoded.facts(summary):
                return _one(find(decoded.facts(summary)))
        return None

    def tree_size(self) -> Span | None:
        """The largest tree of prompt tokens over Medusa's."""
        sizes = {
            method: max(decoded.facts(summary)["nodes"])
            for (_, method), summary in self.by_method.items()
            if "nodes" in decoded.facts(summary)
        }
        if not {METHOD, MEDUSA} <= {*sizes}:
            return None
        return _one(sizes[METHOD] / sizes[MEDUSA])

    def gap(self, distance: int, k: int) -> Span | None:
        """Return how much more often prompt tokens guess right than Medusa."""
        places = [(METHOD, distance, k), (MEDUSA, distance, k)]
        if not all(place in self.guesses for place in places):
            return None
        return _one(self.guesses[places[0]] - self.guesses[places[1]])

    def gain(self, distance: int) -> Span | None:
        """Return how much more often, in relation, prompt tokens guess right than Medusa."""
        ratios = [
            rate / self.guesses[MEDUSA, at, k] - 1
            for (method, at, k), rate in self.guesses.items()
            if method == METHOD and at == distance and self.guesses.get((MEDUSA, at, k))
        ]
        return _span(ratios)

    def change(self, base: Variants, other: Variants) -> Span | None:
        """Relative changes of accuracy from one variant to another, over the tables' columns."""
        before, after = (
            max(filter(which, self.variants), key=attrgetter("tokens"), default=None)
            for which in (base, other)
        )
        if before is None or after is None:
            return None
        shared = [name for name in SHOWN if before.accuracy.get(name) and name in after.accuracy]
        return _span([after.accuracy[name] / before.accuracy[name] - 1 for name in shared])


Variants = Callable[[Variant], bool]
SHOWN = ("@1 top 1", "@1 top 5", "@2 top 1", "@2 top 5")


def _guessing(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs that probed both methods; they must be of one setting of each."""
    both = (MEDUSA, METHOD)
    found = [r for r in runs if r.header.kind == "drafts" and {*both} <= {*r.header.methods}]
    for label in both:
        for one, other in pairwise(found):
            if one.header.methods[label].options != other.header.methods[label].options:
                raise decoded.two_settings(label, TASK, (label, one), (label, other))
    return found


def _one(value: float) -> Span:
    return value, value


def _span(values: Sequence[float | None]) -> Span | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _base(variant: Variant) -> bool:
    return variant.has() and variant.distilled


def _text(variant: Variant) -> bool:
    return variant.has() and not variant.distilled


def _ensemble(variant: Variant, **options: Any) -> bool:
    epts = variant.options.get("epts", 1)
    return epts > 1 and not variant.distilled and variant.has(epts=epts, **options)


def _in_batches_of(size: int) -> Variants:
    """Distilled ensembles that saw so many sequences at once."""
    return lambda v: v.distilled and v.batch_size == size and v.options.get("epts", 1) > 1


def _less(span: Span | None) -> Span | None:
    """Turn a range of changes into one of losses."""
    return None if span is None else (0.0 - span[1], 0.0 - span[0])


CLAIMS: Mapping[str, Callable[[ClaimMeasures], Span | None]] = {
    "speedup_max": lambda m: m.speedups((MT_BENCH, *EXACT_TASKS)),
    "speedup_range_greedy_all_tasks": lambda m: m.speedups((MT_BENCH, *EXACT_TASKS)),
    "speedup_range_coding_math": lambda m: m.speedups(EXACT_TASKS),
    "speedup_over_medusa_max": ClaimMeasures.over_medusa,
    "trainable_parameter_fraction": lambda m: m.fact(
        lambda facts: facts["added_parameters"] / facts["model_parameters"]
    ),
    "tree_size_relative_to_medusa": ClaimMeasures.tree_size,
    "acceptance_rate_gain_long_range_max": lambda m: m.gain(3),
    "top10_accuracy_gap_over_medusa_distance1": lambda m: m.gap(1, TOP),
    "top10_accuracy_gap_over_medusa_distance3": lambda m: m.gap(3, TOP),
    "distance3_gap_top10": lambda m: m.gap(3, TOP),
    "distance3_gap_top1": lambda m: m.gap(3, 1),
    "ept100_over_ept1_accuracy_gain": lambda m: m.change(_text, _ensemble),
    "kd_gain_max": lambda m: m.change(_text, _base),
    "batch1_over_batch4_gain_max": lambda m: m.change(_in_batches_of(4), _in_batches_of(1)),
    "prefix_tuning_loss_max": lambda m: _less(
        m.change(_base, lambda v: v.distilled and v.has(prefix=1))
    ),
    "custom_head_one_stage_loss": lambda m: _less(
        m.change(_base, lambda v: v.has(custom_head=True) and not v.second_stage)
    ),
    "custom_head_two_stage_gain": lambda m: m.change(
        _base, lambda v: v.has(custom_head=True) and v.second_stage
    ),
    "decoder_mask_loss": lambda m: _less(
        m.change(_ensemble, lambda v: _ensemble(v, mask="decoder"))
    ),
    "encoder_mask_loss": lambda m: _less(
        m.change(_ensemble, lambda v: _ensemble(v, mask="encoder"))
    ),
    "learned_weight_loss": lambda m: _less(
        m.change(_ensemble, lambda v: _ensemble(v, aggregation="learned"))
    ),
    "multi_exit_loss": lambda m: _less(
        m.change(_base, lambda v: v.distilled and v.options.get("exits", 1) > 1)
    ),
}


@table("prompt_ppd/claims", recipe=(COMPARISON, SPEEDUPS, GUESSES), tasks=TASKS)
def claims(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Every claim with the range that was measured for it."""
    measured, title = ClaimMeasures(runs), "Numeric claims of the text"
    rows = [_row(row, measured) for row in paper["rows"]]
    data = Sheet(
        title,
        ("claim", "paper", "paper low", "paper high", "here low", "here high", "where"),
        tuple(rows),
        notes=NOTES,
    )
    shown = Sheet(
        title,
        ("claim", "paper", "here", "where"),
        tuple(_shown(*row) for row in rows),
        notes=NOTES,
    )
    return TableSheets(data, (shown,))


NOTES = (
    "here: the smallest and the largest over tasks, or over the columns of the ablation's table. "
    "Gains and losses are relative, gaps differences of shares, as the paper has them.",
    "Ablations: give the runs of prompt_ppd/2 to /8 too. Hours, memory beside other methods, "
    "training losses and other models have no measurement here.",
)


def _row(row: Mapping[str, Any], measured: ClaimMeasures) -> Claim:
    find = CLAIMS.get(row["claim"])
    low, high = (find(measured) if find else None) or (None, None)
    return row["claim"], row["value"], row["low"], row["high"], low, high, row["where"]


def _shown(
    claim: str,
    value: float | None,
    low: float | None,
    high: float | None,
    least: float | None,
    most: float | None,
    where: str,
) -> tuple[Cell, ...]:
    """A row with ranges in one cell each."""
    printed = _range(low, high) if value is None else _range(value, value)
    return claim.replace("_", " "), printed, _range(least, most), where


def _range(low: float | None, high: float | None) -> str | None:
    if low is None or high is None:
        return None
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
