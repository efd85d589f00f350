"""A training run: what it counts beforehand, and what it is measured on."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine.placement import FreeMemory
from ppdbench.training import prepare
from ppdbench.training import run as runs
from ppdbench.training.trainer import Trainer
from tests.families import stock_model
from tests.training.made import TRAIN_HEADS, TWO_STEPS, training

Capture = pytest.CaptureFixture[str]


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(FreeMemory, "found", lambda *_: FreeMemory({"cpu": size}))


def test_parts_that_do_not_fit_are_refused_before_weights_load(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 300_000)
    monkeypatch.setattr(prepare, "load_stock", lambda spec: pytest.fail("weights were loaded"))
    assert run([*TRAIN_HEADS, *TWO_STEPS, "--whole", "--layers", "all", "--out", "heads"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "gradients and optimizer" in line
    assert "--rank" in line
    assert not (home / "heads").exists()


def test_a_step_that_does_not_fit_is_refused_with_a_batch_that_does(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*TRAIN_HEADS, *TWO_STEPS[:2], "--steps", "1", "--batch-size", "4096", "--out", "heads"]
    monkeypatch.setattr(Trainer, "run", lambda *_, **__: pytest.fail("a step was taken"))
    free(monkeypatch, 4_000_000)
    assert run(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "4096 sequences of 16 tokens" in line
    advised = int(line.rpartition("--micro-batch ")[2])
    assert 1 <= advised < 4096
    monkeypatch.undo()
    monkeypatch.chdir(home)
    free(monkeypatch, 4_000_000)
    monkeypatch.setattr(Trainer, "run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run([*words, "--micro-batch", str(advised)]) == 130  # so it came to the first step


def test_a_dry_run_adds_up_and_says_that_it_does_not_fit(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.report import export

    told: list[Any] = []
    monkeypatch.setattr(export, "emit", lambda sheets, content, form: told.append(content))
    assert run([*TRAIN_HEADS, *TWO_STEPS, "--dry-run", "--out", "dry"]) == 0
    (plan,) = told
    parts = ("weights", "added", "optimizer", "passes")
    assert plan["total_bytes"] == sum(plan[f"{part}_bytes"] for part in parts)
    assert plan["added_bytes"] == 4 * plan["trained"]
    assert plan["short"] is None
    assert plan["step_seconds"] > 0
    free(monkeypatch, 4_000_000)
    words = [*TRAIN_HEADS, *TWO_STEPS[:2], "--steps", "1", "--batch-size", "60000", "--dry-run"]
    assert run([*words, "--out", "dry"]) == 0
    assert told[1]["step_seconds"] is None
    assert "--micro-batch" in capsys.readouterr().err


def test_no_less_than_one_sequence_is_measured() -> None:
    job = SimpleNamespace(held_out_tokens=5)
    training: Any = SimpleNamespace(
        held_out=np.arange(1000), job=job, config=SimpleNamespace(sequence=64)
    )
    of = runs.Training.measured_on.fget
    assert of is not None
    assert len(of(training)) == 65
    job.held_out_tokens = 0
    assert len(of(training)) == 1000


def test_a_held_out_text_too_short_to_measure_is_told_at_once(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "short.txt").write_text("a", "utf-8")
    monkeypatch.setattr(Trainer, "run", lambda *_, **__: pytest.fail("a step was taken"))
    words = [*training("medusa"), "--heads", "4", "--steps", "2", "--held-out", "short.txt"]
    assert run([*words, "--out", "none"]) == 2
    assert "tokens, and nothing can be measured on fewer than" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["heads", "medusa", "layerskip"])
def test_a_model_with_nan_leaves_no_folder(home: Path, kind: str, capsys: Capture) -> None:
    model = stock_model("llama-mha-tied", vocab_size=300)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
    model.save_pretrained(home / "model")
    words = ["train", kind, "--model", "model", "--text", "text.txt", "--out", "none"]
    assert run([*words, "--steps", "2", "--batch-size", "2", "--sequence", "16"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "NaN" in line]
    assert line.startswith("ppdbench: the model holds NaN or infinite weights, the first in model")
    assert "layers.1.mlp.up_proj.weight" in line
    assert not (home / "none").exists()
