"""Table 4 of "Predictive Pipelined Decoding": how heads of middle layers are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdbench.files.json_file import read_json
from ppdbench.files.papers import Paper
from ppdbench.files.resources import reference_model
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import table

TRAINING = "training.json"
LOSSES = {"ce": "Cross-Entropy", "kl": "divergence from the model"}

Facts = Mapping[str, Any]

# The paper's rows, and where a training keeps what stands there.
OURS: Mapping[str, Callable[[Facts], Cell]] = {
    "epochs": lambda facts: _epochs(facts),
    "learning_rate": lambda facts: float(facts["config"]["learning_rate"]),
    "batch_size": lambda facts: int(facts["config"]["batch_size"]),
    "optimizer": lambda facts: "AdamW",  # the only one there is
    "loss": lambda facts: LOSSES[facts["loss"]],
    "max_seq_len": lambda facts: int(facts["config"]["sequence"]),
    "warmup_ratio": lambda facts: float(facts["config"]["warmup_ratio"]),
    "weight_decay": lambda facts: float(facts["config"]["weight_decay"]),
}


@table("ppd/4")
def head_training(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """The paper's settings beside those of the heads that come with the embedded model."""
    facts = _facts(reference_model("heads") / TRAINING)
    printed = {row["hyperparameter"]: row["value"] for row in paper["rows"]}
    theirs, layers = paper["setting"], facts["layers"]
    return Sheet(
        "Table 4: training of heads for middle layers",
        ("hyperparameter", "paper", "embedded model"),
        tuple((name, _text(value), _text(OURS[name](facts))) for name, value in printed.items()),
        notes=(
            f"Trained in the paper: {theirs['trainable']}, on {theirs['dataset']}. Here: a change "
            f"of rank {facts['rank']} of the model's own head for each of the layers {layers[0]} "
            f"to {layers[-1]}, on {facts['tokens']:,} tokens.",
            "`ppdbench train heads` takes the paper's settings unless told otherwise, but for "
            "ranks and layers: `--whole --layers all` are the paper's.",
        ),
    )


def _facts(path: Path) -> Facts:
    found: Facts = read_json(path, "training of the heads", "this copy has no embedded model")
    return found


def _epochs(facts: Facts) -> float:
    config = facts["config"]
    seen: int = config["steps"] * config["batch_size"] * config["sequence"]
    return round(seen / int(facts["tokens"]), 3)


def _text(value: Cell) -> str:
    """Settings as people write them: 2e-05 is clearer than 0.0000."""
    return f"{value:g}" if isinstance(value, float) else str(value)
