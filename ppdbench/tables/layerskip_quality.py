"""Table 1 of LayerSkip: what the last and the middle layer know, with and without its training.

Perplexities of ours are on the text that `train layerskip` was given to measure on: those of the
reference model and of its twin without LayerSkip travel with the package, those of another
model's training lie in its folder. Of the paper's tasks, GSM8K can be scored here layer by layer. A
model of which nothing says that it was trained so stands as the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from ppdbench.files.papers import Paper
from ppdbench.files.resources import reference_model
from ppdbench.runs.store import StoredRun
from ppdbench.tables import decoded
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.compared import ComparedRow, Quantity, compared
from ppdbench.tables.recipe import RecipeStep, layer_at
from ppdbench.training.record import Exit, Shipped, read_quality

Exits = Mapping[int, Exit]  # what was measured, by layers run

EXITS = RecipeStep(
    "layerskip-exits",
    "bench --task gsm8k --method greedy --method early-exit:exit_layer={16/32}",
)
REFERENCE, QUALITY = "reference", "quality.json"
MIDDLE = Fraction(1, 2)
METRICS = {"gsm8k": "gsm8k_accuracy"}  # of the paper's tasks that a run of ours can score
HELD_OUT = {"perplexity": "held-out text, perplexity", "accuracy": "held-out text, next token"}
TRAINED, PLAIN = "layerskip", "baseline"
QUANTITIES = tuple(
    Quantity(f"{exit_} {variant}", f"{exit_} {variant}")
    for exit_ in ("last", "middle")
    for variant in (PLAIN, TRAINED)
)
VARIANTS = (
    "Accuracies are fractions. baseline: the model without LayerSkip training; last and middle: "
    "after all layers and after half of them, without verification."
)
UNSCORED = (
    "Tasks with a choice of answers, and those whose answers are code to be run, have no score "
    "of ours"
)


@table("layerskip/1", recipe=(EXITS,), tasks=METRICS)
def exits(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The last and the middle layer, baseline against LayerSkip."""
    model = runs[0].header.model
    held_out = _held_out(model.name)
    variant = TRAINED if held_out or TRAINED in model.name.lower() else PLAIN
    scores = _scores(runs, variant)
    printed: dict[tuple[str, str], dict[str, float]] = {}
    for row in paper["rows"]:
        cells = printed.setdefault((row["task"], row["model"]), {})
        cells[f"{row['exit']} {row['variant']}"] = row["value"]
    rows = [
        ComparedRow((task, of), cells, scores.get(task, {}))
        for (task, of), cells in printed.items()
    ]
    middle = layer_at(MIDDLE, model.n_layers)
    rows += [
        ComparedRow((what, model.name), {}, _of_held_out(held_out, metric, model.n_layers, middle))
        for metric, what in HELD_OUT.items()
        if held_out
    ]
    return compared(
        "Table 1: last and middle layer after continual pretraining",
        ("task", "model"),
        QUANTITIES,
        rows,
        (VARIANTS, f"{UNSCORED}; {_not_run(model.name, variant)}."),
    )


def _not_run(model: str, variant: str) -> str:
    """Say which of the two has no scores of tasks, and why."""
    if variant == PLAIN:
        return (
            f"nor has LayerSkip: {model} stands as the baseline, since neither its name nor a "
            f"{QUALITY} beside it says that it was trained so"
        )
    if model == REFERENCE:
        return "nor has the baseline on tasks, since the twin does not travel with the package"
    return "nor has the baseline on tasks, which is another model"


def _scores(runs: Sequence[StoredRun], variant: str) -> dict[str, dict[str, float | None]]:
    """Return the scores of decoding from the last and from the middle layer, by task."""
    found: dict[str, dict[str, float | None]] = {}
    for summary in decoded.summaries(runs, METRICS):
        exit_ = _exit(summary)
        if exit_ is not None:
            score = decoded.quality(summary, METRICS[summary["task"]])
            found.setdefault(summary["task"], {})[f"{exit_} {variant}"] = score
    return found


def _exit(summary: Mapping[str, Any]) -> str | None:
    """Say if a method read the last layer or the middle one; None if neither."""
    if summary["method"] == "greedy":
        return "last"
    options = decoded.settled(summary)
    middle = layer_at(MIDDLE, decoded.n_layers(summary))
    at_middle = summary["method"] == "early-exit" and options["exit_layer"] == middle
    return "middle" if at_middle and not options["confidence"] else None


def _held_out(model: str) -> dict[str, Exits]:
    """Return, by variant, what was measured after training; nothing where none is kept."""
    shipped = model == REFERENCE
    path = reference_model(QUALITY) if shipped else Path(model).expanduser() / QUALITY
    if not path.is_file():
        return {}
    if not shipped:
        return {TRAINED: _by_layer(read_quality(path, list[Exit]))}
    content = read_quality(path, Shipped)
    return {TRAINED: _by_layer(content.reference), PLAIN: _by_layer(content.twin)}


def _by_layer(rows: Sequence[Exit]) -> Exits:
    return {row.layer: row for row in rows}


def _of_held_out(
    held_out: Mapping[str, Exits], metric: str, last: int, middle: int
) -> dict[str, float]:
    return {
        f"{exit_} {variant}": getattr(by_layer[layer], metric)
        for variant, by_layer in held_out.items()
        for exit_, layer in (("last", last), ("middle", middle))
        if layer in by_layer
    }
