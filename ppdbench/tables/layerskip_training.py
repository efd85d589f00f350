"""Tables 7 to 9 of LayerSkip and its recipes: how its models were trained, and ours.

What is said of ours is read from the files that travel with the reference model: its training
in two stages, its configuration, its exits' perplexities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppdbench.errors import ConfigError
from ppdbench.files import papers
from ppdbench.files.json_file import read_json
from ppdbench.files.papers import Paper
from ppdbench.files.resources import reference_model
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, table

Stage = Mapping[str, Any]

OURS, FROM_SCRATCH, ONWARD = "reference", "pretraining_from_scratch", "continued"
NO_DIFFERENCE = "Settings, not results: they are shown beside each other without differences."


@table("layerskip/7")
def training_setup(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """Batches, steps and devices of each training."""
    context = {row["model"]: row["context"] for row in _architectures()}
    rows: list[tuple[Cell, ...]] = [
        (
            row["experiment"],
            row["model"],
            row["batch_size"],
            row["steps"],
            f"{row['num_gpus']} {row['gpu']} {row['gpu_memory_gb']} GB",
            _billions(row["batch_size"] * row["steps"] * row["num_gpus"] * context[row["model"]]),
        )
        for row in paper["rows"]
    ]
    for what, stage in _stages():
        config = stage["config"]
        tokens = config["batch_size"] * config["steps"] * config["sequence"]
        rows.append(
            (what, OURS, config["batch_size"], config["steps"], "1 CPU core", _billions(tokens))
        )
    return Sheet(
        "Table 7: training configuration",
        ("experiment", "model", "batch", "steps", "devices", "tokens, billions"),
        tuple(rows),
        notes=(
            "batch: sequences per device and step. tokens: batch x steps x devices x context, "
            "computed here with the context of Table 9.",
            NO_DIFFERENCE,
        ),
        digits={"tokens, billions": 3},
    )


@table("layerskip/8")
def learning_rates(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """Initial learning rates with and without layer dropout."""
    rows: list[tuple[Cell, ...]] = [
        (
            row["experiment"],
            row["model"],
            _yes(row["layer_dropout_inferred"]),
            _rate(row["initial_learning_rate"]),
        )
        for row in paper["rows"]
    ]
    rows += [
        (what, OURS, _yes(stage["recipe"]["p_max"] > 0), _rate(stage["config"]["learning_rate"]))
        for what, stage in _stages()
    ]
    return Sheet(
        "Table 8: initial learning rates",
        ("experiment", "model", "layer dropout", "learning rate"),
        tuple(rows),
        notes=(
            "The marks for dropout are lost in the paper's export and inferred: in pairs the "
            "second is with it.",
            "The twin of the reference model had the same rate without dropout.",
            NO_DIFFERENCE,
        ),
    )


@table("layerskip/9")
def architectures(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """Width, heads, depth and context."""
    columns = ("dim", "heads", "layers", "context")
    config = _read("config.json")
    ours = (
        config["hidden_size"],
        config["num_attention_heads"],
        config["num_hidden_layers"],
        config["max_position_embeddings"],
    )
    rows = [(row["model"], *(row[name] for name in columns)) for row in paper["rows"]]
    return Sheet(
        "Table 9: model architectures",
        ("model", *columns),
        (*rows, (OURS, *ours)),
        notes=(NO_DIFFERENCE,),
    )


RECIPE = ("tokens", "p_max", "e_scale", "curriculum", "R", "time_scale")


@table("layerskip/text")
def recipes(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The recipe of each training, and the numbers that the text claims."""
    trainings = [
        (row["experiment"], row["model"], *(row[name] for name in RECIPE)) for row in paper["rows"]
    ]
    trainings += [(what, OURS, *_recipe(stage)) for what, stage in _stages()]
    claims = [(claim["what"], _text(claim["value"]), claim["where"]) for claim in paper["claims"]]
    title = "Training recipes and claims in the text"
    long = [
        (model, f"{what}: {name}", _text(value), None)
        for what, model, *values in trainings
        for name, value in zip(RECIPE, values, strict=True)
    ]
    data = (*long, *(("paper", *claim) for claim in claims))
    return TableSheets(
        Sheet(title, ("of", "what", "value", "where"), data, notes=(CLAIMS, NO_DIFFERENCE)),
        (
            Sheet(
                title,
                ("experiment", "model", *RECIPE),
                tuple(trainings),
                notes=(NO_DIFFERENCE,),
                digits={"p_max": 1, "e_scale": 1},
                groups=(2, *(1 for _ in RECIPE)),
            ),
            Sheet("Claims", ("what", "paper", "where"), tuple(claims), notes=(CLAIMS,)),
        ),
    )


CLAIMS = (
    "What is measured here for them stands in the tables that they name; how many layers tokens "
    "need is what `ppdbench probe` shows."
)


def _recipe(stage: Stage) -> tuple[Cell, ...]:
    """One of ours in the order of `RECIPE`."""
    recipe, config = stage["recipe"], stage["config"]
    tokens = config["batch_size"] * config["steps"] * config["sequence"]
    return (
        f"{tokens / 1e6:.1f}M",
        recipe["p_max"],
        recipe["e_scale"],
        recipe["curriculum"],
        recipe["rotation"],
        "exponential" if recipe["ramp"] else "none",
    )


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _stages() -> list[tuple[str, Stage]]:
    """The trainings that made the reference model, named like the paper's."""
    return list(zip((FROM_SCRATCH, ONWARD), _read("training.json"), strict=True))


def _architectures() -> Sequence[Mapping[str, Any]]:

    rows: Sequence[Mapping[str, Any]] = papers.read_paper("layerskip/9")["rows"]
    return rows


def _read(name: str) -> Any:
    path = reference_model(name)
    if not path.is_file():
        raise ConfigError(f"{path} is missing: this copy of the package has no reference model")
    return read_json(path, "file", "it travels with the reference model")


def _billions(tokens: int) -> float:
    return tokens / 1e9


def _rate(value: float) -> str:
    """A learning rate with the digits that it has, and no more."""
    return np.format_float_scientific(value, trim="-", exp_digits=2)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
