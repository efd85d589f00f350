"""What a training run takes is known before it takes it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine.placement import FreeMemory
from ppdbench.methods.layerskip.recipe import Recipe
from ppdbench.methods.layerskip.train import LayerSkipObjective
from ppdbench.training import prepare
from ppdbench.training import run as runs
from ppdbench.training.evaluate import MEASURING
from ppdbench.training.head_plan import some_exits
from ppdbench.training.heads import HeadsObjective
from ppdbench.training.memory import (
    StepMemory,
    StepTrace,
    TensorLedger,
    held_by,
    kept_diary,
    measure_passes,
)
from ppdbench.training.trainer import Trainer
from tests.families import stock_model

Capture = pytest.CaptureFixture[str]
TRAIN = ["train", "heads", "--model", "./model", "--text", "text.txt", "--split-by", "file"]
SMALL = ["--sequence", "16", "--batch-size", "4", "--steps", "2"]


def diary(tokens: int, *sizes: int, sequences: int = 1, kept: tuple[int, ...] = ()) -> StepTrace:
    """Of tensors that are all there at once and then go, but for some."""
    numbers = range(len(sizes))
    return StepTrace(sequences, tokens, (*numbers, *(~n for n in numbers if n not in kept)), sizes)


def test_all_tensors_that_are_made_are_written_down_and_views_are_not() -> None:
    ledger = TensorLedger()
    given = torch.zeros(100)
    with ledger:
        made = given + 1
        made.view(10, 10)[2:].add_(1)
        del made
        held = torch.zeros(50)
    assert (ledger.sizes, ledger.events) == ([400, held.nbytes], [0, ~0, 1])


def test_each_tensor_is_carried_forward_by_itself() -> None:
    ones = [diary(n, 5000, 10 * n, n * n, 7000, kept=(3,)) for n in (16, 32, 64)]
    two = diary(16, 5000, 320, 256, 7000, sequences=2, kept=(3,))
    passes = StepMemory(ones, two)
    assert passes.bytes(1, 64) == 5000 + 640 + 64 * 64
    assert passes.bytes(3, 2048) == 5000 + 3 * 20480 + 2048 * 2048  # a mask is not made thrice


def test_steps_that_are_not_alike_are_reckoned_too_high() -> None:
    ones = [diary(n, 100 * n) for n in (16, 32)]
    passes = StepMemory([*ones, diary(64, 5000, 6400)], diary(16, 3200, sequences=2))
    assert passes.bytes(2, 128) == 4 * (5000 + 6400)


@pytest.mark.parametrize("kind", ["heads", "layerskip"])
def test_a_step_holds_what_was_worked_out_from_short_ones(kind: str) -> None:
    """The forecast for 8 sequences of 400 tokens against the step itself."""
    stock = stock_model("llama", vocab_size=300, max_position_embeddings=512)
    objective: Any = (
        HeadsObjective(stock, [1, 2], 400)
        if kind == "heads"
        else LayerSkipObjective(stock.requires_grad_(True), Recipe(rotation=1), 400, seed=0)
    )
    passes = measure_passes(objective, 0, 10, 400, "no")
    truth = kept_diary(objective.eval(), 8, 400, 0, 10, "no")
    assert passes.bytes(8, 400) == pytest.approx(StepMemory([truth], truth).bytes(1, 400), rel=0.02)


def test_parts_without_weights_are_as_large_as_real_ones() -> None:
    stock = stock_model("llama")
    real = held_by(stock, HeadsObjective(stock, [1, 2], 16))
    empty = stock_model("llama").to("meta")
    assert held_by(empty, HeadsObjective(empty, [1, 2], 16)) == real
    assert real.added == 2 * 4 * stock.lm_head.weight.numel()
    assert real.optimizer == 3 * real.added


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(FreeMemory, "found", lambda *_: FreeMemory({"cpu": size}))


def test_parts_that_do_not_fit_are_refused_before_weights_load(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 300_000)
    monkeypatch.setattr(prepare, "load_stock", lambda spec: pytest.fail("weights were loaded"))
    assert run([*TRAIN, *SMALL, "--whole", "--layers", "all", "--out", "heads"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "gradients and optimizer" in line
    assert "--rank" in line
    assert not (home / "heads").exists()


def test_a_step_that_does_not_fit_is_refused_with_a_batch_that_does(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*TRAIN, *SMALL[:2], "--steps", "1", "--batch-size", "4096", "--out", "heads"]
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
    assert run([*TRAIN, *SMALL, "--dry-run", "--out", "dry"]) == 0
    (plan,) = told
    parts = ("weights", "added", "optimizer", "passes")
    assert plan["total_bytes"] == sum(plan[f"{part}_bytes"] for part in parts)
    assert plan["added_bytes"] == 4 * plan["trained"]
    assert plan["short"] is None
    assert plan["step_seconds"] > 0
    free(monkeypatch, 4_000_000)
    words = [*TRAIN, *SMALL[:2], "--steps", "1", "--batch-size", "60000", "--dry-run"]
    assert run([*words, "--out", "dry"]) == 0
    assert told[1]["step_seconds"] is None
    assert "--micro-batch" in capsys.readouterr().err


def test_heads_are_few_and_small_unless_asked_for(home: Path) -> None:
    assert some_exits(30) == [8, 15, 22]
    assert some_exits(2) == [1]
    assert run([*TRAIN, *SMALL, "--out", "heads"]) == 0
    header = json.loads((home / "heads" / "heads.json").read_text("utf-8"))
    assert (header["layers"], header["rank"]) == ([1, 2, 3], 64)


# Held-out text


def test_held_out_text_is_measured_as_far_as_asked_and_told(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plain = HeadsObjective.quality

    def counted(self: Any, ids: Any, sequence: int, watch: Any) -> Any:
        seen.append(len(ids))
        return plain(self, ids, sequence, watch)

    monkeypatch.setattr(HeadsObjective, "quality", counted)
    words = [*TRAIN, *SMALL, "--rank", "2", "--layers", "1", "--held-out", "text.txt"]
    assert run([*words, "--held-out-tokens", "100", "--out", "few"]) == 0
    assert "measured on the first 100 of" in capsys.readouterr().err
    assert seen == [100]


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


def test_measuring_says_how_far_it_is() -> None:
    told: list[tuple[str, int, int | None]] = []
    objective = HeadsObjective(stock_model("llama"), [1], 16, rank=2)
    objective.quality(np.full(85, 5), 16, lambda *step: told.append(step))
    assert told == [(MEASURING, done, 5) for done in (0, 2, 4, 5)]
