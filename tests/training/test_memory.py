"""What a training run takes is known before it takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.methods.layerskip.recipe import Recipe
from ppdbench.methods.layerskip.train import LayerSkipObjective
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
from tests.families import stock_model
from tests.training.made import TRAIN_HEADS, TWO_STEPS

Capture = pytest.CaptureFixture[str]


def diary(tokens: int, *sizes: int, sequences: int = 1, kept: tuple[int, ...] = ()) -> StepTrace:
    """Of tensors that are all there at once and then go, but for some."""
    numbers = range(len(sizes))
    return StepTrace(sequences, tokens, (*numbers, *(~n for n in numbers if n not in kept)), sizes)


def most_at_once(trace: StepTrace) -> int:
    """The most bytes of tensors that a step makes and drops."""
    gone = {~event for event in trace.events if event < 0}
    held = [0]
    for event in trace.events:
        number = event if event >= 0 else ~event
        if number in gone:
            held.append(held[-1] + (1 if event >= 0 else -1) * trace.sizes[number])
    return max(held)


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
    few = [diary(n, 5000, 20 * n, n * n, 7000, sequences=2, kept=(3,)) for n in (16, 32, 64)]
    more = diary(16, 5000, 480, 256, 7000, sequences=3, kept=(3,))
    passes = StepMemory(few, more)
    assert passes.alike
    assert passes.bytes(1, 64) == 5000 + 640 + 64 * 64
    assert passes.bytes(3, 2048) == 5000 + 3 * 20480 + 2048 * 2048  # a mask is not made thrice


def test_steps_that_are_not_alike_are_reckoned_too_high() -> None:
    few = [diary(n, 200 * n, sequences=2) for n in (16, 32)]
    few += [diary(64, 5000, 12800, sequences=2)]
    passes = StepMemory(few, diary(16, 4800, sequences=3))
    assert not passes.alike
    assert passes.bytes(2, 128) == 2 * (5000 + 12800)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("kind", ["heads", "layerskip"])
def test_a_step_holds_what_was_worked_out_from_short_ones(kind: str, precision: str) -> None:
    """The forecast for 8 sequences of 400 tokens against the step itself.

    With as many words as this, weights that a step casts are most of what it holds.
    """
    stock = stock_model("llama", vocab_size=20_000, max_position_embeddings=512)
    objective: Any = (
        HeadsObjective(stock, [1, 2], 400)
        if kind == "heads"
        else LayerSkipObjective(stock.requires_grad_(True), Recipe(rotation=1), 400, seed=0)
    )
    passes = measure_passes(objective, 0, 10, 400, precision)
    assert passes.alike
    for sequences, tokens in ((8, 400), (1, 400), (3, 100)):
        truth = kept_diary(objective.eval(), sequences, tokens, 0, 10, precision)
        assert passes.bytes(sequences, tokens) == pytest.approx(most_at_once(truth), rel=0.005)


def test_a_step_of_short_sequences_is_measured_itself() -> None:
    objective = HeadsObjective(stock_model("llama", vocab_size=20_000), [1, 2], 24)
    passes = measure_passes(objective, 0, 10, 24, "bf16")
    truth = kept_diary(objective.eval(), 8, 24, 0, 10, "bf16")
    assert passes.bytes(8, 24) == pytest.approx(most_at_once(truth), rel=0.005)


def test_parts_without_weights_are_as_large_as_real_ones() -> None:
    stock = stock_model("llama")
    real = held_by(stock, HeadsObjective(stock, [1, 2], 16))
    empty = stock_model("llama").to("meta")
    assert held_by(empty, HeadsObjective(empty, [1, 2], 16)) == real
    assert real.added == 2 * 4 * stock.lm_head.weight.numel()
    assert real.optimizer == 3 * real.added


def test_heads_are_few_and_small_unless_asked_for(home: Path) -> None:
    assert some_exits(30) == [8, 15, 22]
    assert some_exits(2) == [1]
    assert run([*TRAIN_HEADS, *TWO_STEPS, "--out", "heads"]) == 0
    header = json.loads((home / "heads" / "heads.json").read_text("utf-8"))
    assert (header["layers"], header["rank"]) == ([1, 2, 3], 64)


def test_measuring_says_how_far_it_is() -> None:
    told: list[tuple[str, int, int | None]] = []
    objective = HeadsObjective(stock_model("llama"), [1], 16, rank=2)
    objective.quality(np.full(85, 5), 16, lambda *step: told.append(step))
    assert told == [(MEASURING, done, 5) for done in (0, 2, 4, 5)]
