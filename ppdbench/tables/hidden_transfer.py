"""Table 1 of "Parallel Decoding via Hidden Transfer": how much faster each method is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ppdbench.files.papers import Paper
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables import decoded
from ppdbench.tables.base import table
from ppdbench.tables.recipe import RecipeStep

METHODS = {
    "autoregressive": "greedy",
    "self_speculative": "draft-verify",
    "medusa": "medusa",
    "hidden_transfer": "hidden-transfer",
}
TASKS = ("xsum", "gsm8k")

SPEEDUPS = RecipeStep(
    "hidden-transfer-speedups",
    "bench --task xsum --task gsm8k --shots 1 --method greedy --method draft-verify "
    "--method medusa --method hidden-transfer --method lookahead --method prompt-tokens",
)
MEASURED = ("here", "95% low", "95% high", "less mean", "tokens per pass")
NOTES = (
    "Times faster than greedy decoding of the same model, by time per token; absent beside a "
    "mismatch, and where noise could be all of it. less mean: ours less the mean of the printed "
    "ones.",
    "tokens per pass: the ratio of forward passes to greedy's, which the paper announces and does "
    "not print. Its tree, the same for Medusa and hidden transfer, is not given.",
)


@table("hidden_transfer/1", recipe=(SPEEDUPS,), tasks=TASKS)
def transfer_speedups(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """Each method on both tasks: four models of the paper, and ours."""
    models: list[str] = paper["setting"]["models"]
    printed = {
        (r["dataset"], METHODS[r["method"]], r["model"]): r["speedup"] for r in paper["rows"]
    }
    ours = decoded.one_each(decoded.summaries(runs, TASKS), lambda s: (s["task"], s["label"]))
    # Of a method with several settings in a run, each is a row beside the same printed numbers.
    labels = {label: summary["method"] for (_, label), summary in ours.items()}
    labels |= {name: name for name in METHODS.values() if name not in labels.values()}
    rows: list[tuple[Cell, ...]] = []
    for task in TASKS:
        for label, name in sorted(labels.items(), key=lambda item: _place(item[1])):
            theirs = [printed.get((task, name, model)) for model in models]
            rows.append((task, label, *theirs, *_measured(ours.get((task, label)), theirs)))
    return Sheet(
        "Table 1: end-to-end acceleration",
        ("task", "method", *map(_short, models), *MEASURED),
        tuple(rows),
        notes=(*NOTES, *decoded.evidence(ours.values())),
        digits={**{_short(model): 3 for model in models}, **dict.fromkeys(MEASURED, 3)},
        groups=(2, len(models), len(MEASURED)),
    )


def _place(method: str) -> int:
    """The paper's methods in its order, then ours."""
    names = list(METHODS.values())
    return names.index(method) if method in names else len(names)


def _short(model: str) -> str:
    """LLaMA-2-Chat-13B as a head that can be wrapped."""
    return model.replace("-2-Chat", "").replace("-", " ")


def _measured(
    summary: Mapping[str, Any] | None, theirs: Sequence[float | None]
) -> tuple[float | None, ...]:
    if summary is None:
        return (None,) * len(MEASURED)
    value = decoded.speedup(summary)
    is_greedy = summary["method"] == "greedy"  # what lies around 1 is its noise
    low, high = (None if is_greedy else summary[f"speedup_{end}"] for end in ("low", "high"))
    printed = [number for number in theirs if number is not None]
    less = value - fmean(printed) if printed and value is not None else None
    return value, low, high, less, summary["committed_per_step"]
