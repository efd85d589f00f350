"""Tables 2 to 8 of "Hardware-Aware Parallel Prompt Decoding": the ablations of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ppdbench.files.papers import Paper
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.recipe import RecipeStep
from ppdbench.tables.variants import (
    BATCH,
    ENSEMBLE,
    TASK,
    Variant,
    ablation,
    probing_step,
    training_step,
    variants,
)

PaperRow = Mapping[str, Any]
VariantFilter = Callable[[Variant], bool]

TEXT = "--loss ce"  # no distillation: the text's own tokens
SIZES = (1, 2, 5, 10, 20)
LENGTHS = (1, 2, 6, 8, 10, 12)
LONGEST = LENGTHS[-1]
ENSEMBLES = f"The paper's ensembles have 100 EPTs; the recipe's have {ENSEMBLE}."

by_size = {n: training_step(f"prompts-text-{n}", f"--epts {n} {TEXT}") for n in SIZES}
BASE = training_step("prompts-base")
PREFIX = training_step("prompts-prefix", "--prefix 1")
ONE_STAGE = training_step("prompts-head", "--custom-head")
TWO_STAGES = training_step(
    "prompts-head-second", f"--custom-head --start {{{BASE.name}}} --learning-rate 1e-3"
)
by_mask = {
    mask: training_step(f"prompts-{mask}-mask", f"--epts {ENSEMBLE} --mask {mask} {TEXT}")
    for mask in ("decoder", "encoder")
}
LEARNED = training_step("prompts-learned", f"--epts {ENSEMBLE} --aggregation learned {TEXT}")
by_exits = {n: training_step(f"prompts-exits-{n}", f"--exits {n}") for n in (3, 2)}


def _passes(epts: int, epochs: int, batch: int = BATCH, loss: str = "") -> RecipeStep:
    """A training that passes over a text as often as one of the paper's; the text is small."""
    name = f"prompts-{epts}-epochs-{epochs}-batch-{batch}" + ("-text" if loss else "")
    how_long = f"--max-documents 12 --epochs {epochs}"
    return training_step(name, f"--epts {epts} {loss}", batch=batch, how_long=how_long)


by_length = [
    *(_passes(epts, n) for epts in (ENSEMBLE, 1) for n in LENGTHS),
    *(_passes(epts, LONGEST, batch=1) for epts in (ENSEMBLE, 1)),
    *(_passes(epts, LONGEST, loss=TEXT) for epts in (ENSEMBLE, 1)),
]


def _recipe(name: str, trained: Sequence[RecipeStep]) -> tuple[RecipeStep, ...]:
    """Trainings, and a probe of what came of all of them."""
    return (*trained, probing_step(name, trained))


def _plain(epts: int | None = None, **options: Any) -> VariantFilter:
    """Variants with these options and all others as usual; any ensemble where `epts` is None."""

    def wanted(variant: Variant) -> bool:
        of = variant.options.get("epts", 1)
        fits = of > 1 if epts is None else of == epts
        return fits and variant.has(**{**options, "epts": of})

    return wanted


def _longest(known: Iterable[Variant]) -> Variant | None:
    """The one that was trained longest."""
    return max(known, key=lambda variant: variant.tokens, default=None)


@table("prompt_ppd/2", recipe=_recipe("prompts-sizes", [*by_size.values()]), tasks=(TASK,))
def ensemble_sizes(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Compare numbers of embeddings per prompt token."""
    known = [v for v in variants(runs) if not v.distilled]
    notes = ("Trained on the text, without distillation.",)
    return ablation(
        "Table 2: accuracy by number of EPTs",
        paper,
        ("ept",),
        lambda row: _longest(filter(_plain(row["ept"]), known)),
        notes,
    )


@table(
    "prompt_ppd/3",
    recipe=_recipe("prompts-trainings", by_length),
    tasks=(TASK,),
)
def trainings(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Distillation, length of training, batch size."""
    known = variants(runs)

    def find(row: PaperRow) -> Variant | None:
        wanted = _plain(1 if row["ept"] == 1 else None)
        told = (row["kd"], row["epochs"], row["batch_size"])
        alike = (v for v in known if (v.distilled, v.epochs, v.batch_size) == told)
        return next(filter(wanted, alike), None)

    names = ("ept", "kd", "epochs", "batch_size")
    title = "Table 3: accuracy by distillation, epochs and batch size"
    return ablation(title, paper, names, find, (ENSEMBLES,))


@table("prompt_ppd/4", recipe=_recipe("prompts-prefixes", [BASE, PREFIX]), tasks=(TASK,))
def prefix_tuning(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The rows with and without trained keys and values that prompt tokens alone see."""
    known = _usual(runs)
    return ablation(
        "Table 4: prefix tuning",
        paper,
        ("prefix_tuning",),
        lambda row: _longest(filter(_plain(1, prefix=int(row["prefix_tuning"])), known)),
        (),
    )


@table(
    "prompt_ppd/5",
    recipe=_recipe("prompts-heads", [BASE, ONE_STAGE, TWO_STAGES]),
    tasks=(TASK,),
)
def custom_head(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """A decoding head for prompt tokens, trained with them or after them."""
    known = _usual(runs)

    def find(row: PaperRow) -> Variant | None:
        kind = row["custom_head"]
        staged = (v for v in known if v.second_stage == (kind == "two_stage"))
        return _longest(filter(_plain(1, custom_head=kind != "none"), staged))

    return ablation("Table 5: custom decoding head", paper, ("custom_head",), find, ())


@table(
    "prompt_ppd/6",
    recipe=_recipe("prompts-masks", [by_size[ENSEMBLE], *by_mask.values()]),
    tasks=(TASK,),
)
def masks(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Compare what the embeddings of a prompt token see of each other."""
    return _ensembles("Table 6: attention masks for EPTs", paper, runs, "mask", {})


@table(
    "prompt_ppd/7",
    recipe=_recipe("prompts-aggregations", [by_size[ENSEMBLE], LEARNED]),
    tasks=(TASK,),
)
def aggregations(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """A plain mean over an ensemble, or learned weights."""
    ours = {"average": "mean", "learned_weight": "learned"}
    return _ensembles("Table 7: aggregation of EPTs", paper, runs, "aggregation", ours)


@table("prompt_ppd/8", recipe=_recipe("prompts-exits", [BASE, *by_exits.values()]), tasks=(TASK,))
def multi_exit(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The mean of what the last layers give."""
    known = _usual(runs)
    return ablation(
        "Table 8: multi-exit ensemble",
        paper,
        ("exits",),
        lambda row: _longest(filter(_plain(1, exits=row["exits"]), known)),
        (),
    )


def _usual(runs: Sequence[StoredRun]) -> list[Variant]:
    """List the variants trained as most of the paper's are: from the model, in batches of four."""
    return [v for v in variants(runs) if v.distilled and v.batch_size in (None, BATCH)]


def _ensembles(
    title: str, paper: Paper, runs: Sequence[StoredRun], option: str, ours: Mapping[str, str]
) -> TableSheets:
    """Ensembles that differ in one option, all of one size: the largest that every value has."""
    known = [v for v in variants(runs) if not v.distilled]
    values = {row[option]: ours.get(row[option], row[option]) for row in paper["rows"]}
    of = {value: [*filter(_plain(None, **{option: name}), known)] for value, name in values.items()}
    sizes = [{v.options["epts"] for v in found} for found in of.values() if found]
    shared = set.intersection(*sizes) if sizes else set()

    def find(row: PaperRow) -> Variant | None:
        return _longest(v for v in of[row[option]] if v.options["epts"] == max(shared, default=0))

    notes = ("Trained on the text, without distillation.", ENSEMBLES)
    return ablation(title, paper, (option,), find, notes)
