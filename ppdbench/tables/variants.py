"""Prompt tokens that differ in how they were trained, and how far ahead each guesses right.

Every ablation of the paper is a training run with one option changed, and a probe of its guesses
on Alpaca, where the model's own continuation says what is right. Which variant a stored probe is
of follows from what its header keeps of the add-on: the options that it was trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.papers import Paper
from ppdbench.probe.accuracy import accuracies
from ppdbench.report.sheet import Cell
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets
from ppdbench.tables.compared import ComparedRow, Quantity, blanks, compared
from ppdbench.tables.recipe import RecipeStep

TASK, TOKENS = "alpaca", 20  # the paper's accuracy is on this task, over so many steps
METHOD = "prompt-tokens"
CELLS = ((1, 1), (1, 5), (2, 1), (2, 5))  # distance and k, as the tables have them
QUANTITIES = tuple(Quantity(name, name) for name in (f"@{d} top {k}" for d, k in CELLS))
DEFAULTS: Mapping[str, Any] = {
    "epts": 1,
    "mask": "ensemble",
    "aggregation": "mean",
    "exits": 1,
    "prefix": 0,
    "custom_head": False,
}
BATCH = 4  # of the paper's variants, unless they are about it

# What a CPU can train: so many short sequences, where the paper passes over its text 12 times.
SMALL = "--sequence 128 --insertions 4"
STEPS = "--max-documents 2000 --steps 120"
ENSEMBLE = 10  # EPTs of ours where the paper has 100


@dataclass(frozen=True, slots=True)
class Variant:
    """One probed add-on: how it was trained, and how often its guesses are right."""

    options: Mapping[str, Any]
    epochs: int | None
    batch_size: int | None
    tokens: int  # seen in training, counted as often as they were
    second_stage: bool
    accuracy: Mapping[str, float]

    @property
    def distilled(self) -> bool:
        """True if it learned from the model's distribution and not from the text."""
        return self.options.get("loss") != "ce"

    def has(self, **options: Any) -> bool:
        """True if it was trained with these options, and all others as usual."""
        wanted = {**DEFAULTS, **options}
        return all(self.options.get(name, DEFAULTS[name]) == v for name, v in wanted.items())


def training_step(
    name: str, options: str = "", *, batch: int = BATCH, how_long: str = STEPS
) -> RecipeStep:
    """A step that trains one variant."""
    words = f"train prompt-tokens --text {{text}} {SMALL} {how_long} --batch-size {batch} {options}"
    return RecipeStep(name, words.rstrip())


def probing_step(name: str, trained: Sequence[RecipeStep]) -> RecipeStep:
    """A step that probes variants, all on the same outputs."""
    methods = " ".join(f"--method {METHOD}:addon={{{step.name}}}" for step in trained)
    return RecipeStep(
        name, f"probe --what drafts --task {TASK} --max-new-tokens {TOKENS} {methods}"
    )


def variants(runs: Sequence[StoredRun]) -> list[Variant]:
    """All prompt tokens that these runs probed on the paper's task."""
    found = [
        variant
        for run in runs
        if run.header.kind == "drafts"
        for label, about in run.header.methods.items()
        if about.name == METHOD
        for variant in _of_run(run, label)
    ]
    if not found:
        raise DataError(
            f"none of these runs probed {METHOD} on {TASK}; it takes `ppdbench probe --what drafts "
            f"--task {TASK} --method {METHOD}:addon=DIR`"
        )
    return found


def _of_run(run: StoredRun, label: str) -> list[Variant]:
    samples = [s for s in run.samples if s.task == TASK and s.method == label]
    facts = run.header.facts.get(label, {})
    if not samples or "options" not in facts:
        return []
    rates = {f"@{a.distance} top {a.k}": a.accuracy for a in accuracies(samples)}
    told = facts.get("training") or {}
    return [
        Variant(
            facts["options"],
            _epochs(told),
            told.get("batch_size"),
            told["steps"] * told["batch_size"] * told["sequence"] if told else 0,
            told.get("start") is not None,
            rates,
        )
    ]


def _epochs(told: Mapping[str, Any]) -> int | None:
    """Passes over the text, in whole numbers."""
    if not told.get("steps") or not told.get("tokens"):
        return None
    blocks: int = told["tokens"] // (told["sequence"] + 1)
    epochs: int = round(told["steps"] * told["batch_size"] / blocks)
    return epochs


Find = Callable[[Mapping[str, Any]], Variant | None]


def ablation(
    title: str, paper: Paper, names: Sequence[str], find: Find, notes: Sequence[str]
) -> TableSheets:
    """A table of accuracies: `names` are the columns of the paper that tell its variants apart."""
    printed: dict[tuple[Cell, ...], dict[str, float]] = {}
    first: dict[tuple[Cell, ...], Mapping[str, Any]] = {}
    for row in paper["rows"]:
        key = tuple(_cell(row[name]) for name in names)
        first.setdefault(key, row)
        printed.setdefault(key, {})[f"@{row['distance']} top {row['top_k']}"] = row["accuracy"]
    rows = []
    for key, theirs in printed.items():
        ours = find(first[key])
        rows.append(ComparedRow((*key, _trained(ours)), theirs, ours.accuracy if ours else {}))
    heads = (*(name.replace("_", " ") for name in names), "ours")
    missing = blanks(rows, "no such prompt tokens were trained and probed")
    return compared(title, heads, QUANTITIES, rows, (*NOTES, *notes, *missing))


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int | float) else str(value)


def _trained(variant: Variant | None) -> str | None:
    """Name the row of our add-on by the size of its ensemble and the length of its training."""
    if variant is None:
        return None
    told = f", {variant.tokens / 1e3:.0f}k" if variant.tokens else ""
    return f"{variant.options.get('epts', 1)} EPT{told}"


NOTES = (
    "Share of positions whose token is among the first k guesses at the distance; @1: the token "
    f"after the model's own next one. On {TASK}, at most {TOKENS} tokens each.",
    "ours: embeddings per prompt token (EPTs) and thousands of tokens trained on, for what stands "
    "beside the printed row. The paper passed over about 70,000 conversations up to 12 times.",
)
