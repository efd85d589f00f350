"""Table 5 of "Predictive Pipelined Decoding": match rates where the final token is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.papers import Paper
from ppdbench.probe.ranks import StoredRanks
from ppdbench.probe.summary import INTERVAL, TOTAL, Rate, match_rates
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.drawing import drawn_note, drawn_words
from ppdbench.runs.records import AskedTarget, ProbeHeader
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import table
from ppdbench.tables.matches import BUCKETS, TASKS, our_depth, probes
from ppdbench.tables.recipe import RecipeStep, layer_at

K = 3  # early candidates, in all of the table
DRAWN = tuple(
    AskedTarget(kind=kind, top_k=3, top_p=0.95, temperature=1.0) for kind in ("top-k", "top-p")
)
TARGETS = {"greedy": "greedy", "top_k_sampling": "top-k", "top_p_sampling": "top-p"}

SAMPLED = RecipeStep(
    "ppd-sampled",
    "probe --task cnn_dailymail --task squad --layers {20/40} -k 3 --target greedy "
    "--target top-k --top-k 3 --target top-p --top-p 0.95 --limit 100",
)


@table("ppd/5", recipe=(SAMPLED,), tasks=(TASKS["cnn_dm"], TASKS["squad"]))
def sampled(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """A row for each way of drawing and task, as printed."""
    for run in runs:
        _check_drawn(run)
    depth = our_depth(runs)
    layer = layer_at(Fraction(1, 2), depth)
    rates = match_rates(StoredRanks(probes(runs, SAMPLED.command)), (K,), BUCKETS)
    ours = {
        (rate.target, rate.task): rate
        for rate in rates
        if (rate.layer, rate.head, rate.bucket) == (layer, "N", TOTAL)
    }
    return Sheet(
        "Table 5: match rate under sampling",
        ("decoding", "task", "paper", "here", "diff", "low", "high"),
        tuple(_row(row, ours) for row in paper["rows"]),
        notes=(
            f"How often the token that was picked is among the {K} early candidates. Early: after "
            f"layer {layer} of {depth} here, the model's own head; the paper does not say.",
            *drawn_note(DRAWN),
            f"low, high: {INTERVAL}.",
        ),
        digits=dict.fromkeys(("paper", "here", "diff", "low", "high"), 3),
    )


def _check_drawn(run: StoredRun) -> None:
    """Refuse tokens that were drawn otherwise than the recipe draws."""
    if isinstance(run.header, ProbeHeader):
        asked = {target.kind: drawn_words(target) for target in DRAWN}
        for target in run.header.config.targets:
            if (words := asked.get(target.kind)) and drawn_words(target) != words:
                raise DataError(
                    f"{run.path} draws {drawn_words(target)}, and table ppd/5 {words}; give a run "
                    "that draws so"
                )


def _row(row: Mapping[str, Any], ours: Mapping[tuple[str, str], Rate]) -> tuple[Cell, ...]:
    target, task, paper = TARGETS[row["decoding"]], TASKS[row["task"]], row["match_rate"]
    found = ours.get((target, task))
    if found is None:
        return target, task, paper, None, None, None, None
    return target, task, paper, found.match_rate, found.match_rate - paper, found.low, found.high
