"""Table 6 of LayerSkip: what it is worth to keep what drafting has computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.papers import Paper, our_task
from ppdbench.runs.store import StoredRun
from ppdbench.tables import decoded
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.compared import ComparedRow, blanks, compared
from ppdbench.tables.layerskip import SPEEDUP, TIME, depth_of, has_fixed_drafts, values
from ppdbench.tables.recipe import RecipeStep, layers_at

Key = tuple[str, str, int]  # task, what is reused, layers run

REUSE = RecipeStep(
    "layerskip-reuse",
    "bench --task topv2 --task cnn_dailymail --max-new-tokens 50 --method greedy "
    + " ".join(
        f"--method layerskip:exit_layer={{{e}/24}},draft_length=7,reuse={reuse}"
        for e in (18, 12)
        for reuse in ("kvq", "kv", "none")
    ),
)

REUSES = {"kvq": True, "kv": None, "none": False}  # ours, and whether the paper says reuse


@table("layerskip/6", recipe=(REUSE,), tasks=("topv2", "cnn_dailymail"))
def reuse(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Time per token with and without reusing what drafting has computed."""
    printed = {
        (our_task(row["task"]), row["exit_layer"], row["kvq_reuse"]): row for row in paper["rows"]
    }
    ours = _measured(runs, {task for task, _, _ in printed})
    depth, layers = depth_of(ours), paper["setting"]["layers"]
    exits = layers_at({Fraction(at, layers) for _, at, _ in printed}, depth)
    rows = []
    for task, exit_layer in dict.fromkeys((task, at) for task, at, _ in printed):
        at = exits[Fraction(exit_layer, layers)]
        for name, reused in REUSES.items():
            theirs = {} if reused is None else printed[task, exit_layer, reused]
            summary = ours.get((task, name, at))
            drafts = decoded.settled(summary)["draft_length"] if summary else None
            names = (task, f"{exit_layer}/{layers}", f"{at}/{depth}", drafts, name)
            rows.append(ComparedRow(names, theirs, values(summary, {}) if summary else {}))
    return compared(
        "Table 6: reuse of the KV cache and the exit query cache",
        ("task", "E paper", "E", "d", "reuse"),
        (TIME, SPEEDUP),
        rows,
        (
            *NOTES,
            *blanks(rows, "they were not run at this depth", runs),
            *decoded.evidence(ours.values()),
        ),
    )


NOTES = (
    "kvq: drafting and checking share one cache and what the exit gave; kv: checking runs the "
    "drafting layers again; none: drafting has a cache and a prefill of its own too.",
    "The paper prints all of it reused and nothing; kv is ours alone. d: tokens drafted, which it "
    "does not say.",
)


def _measured(runs: Sequence[StoredRun], tasks: set[str]) -> dict[Key, Mapping[str, Any]]:
    """Summaries of LayerSkip, alike but for what they reuse."""
    found: dict[Key, Mapping[str, Any]] = {}
    lengths: dict[tuple[str, int], int] = {}
    for summary in decoded.summaries(runs, tasks):
        if summary["method"] != "layerskip" or not has_fixed_drafts(summary):
            continue
        options, task = decoded.settled(summary), summary["task"]
        at, length = options["exit_layer"], options["draft_length"]
        if lengths.setdefault((task, at), length) != length:
            raise DataError(
                f"layerskip on {task} after layer {at} drafts {lengths[task, at]} tokens and "
                f"{length}, but this table compares reuse alone; give runs of one draft_length"
            )
        found[task, options["reuse"], at] = summary
    if not found:
        raise DataError(
            "none of these runs has layerskip on topv2 or cnn_dailymail; table layerskip/6 needs "
            "it with reuse=kvq and reuse=none"
        )
    return found
