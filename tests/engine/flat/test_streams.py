"""Several states of a token in flat layers, which are predicted and corrected as in stock ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine.flat import streams
from ppdbench.engine.flat.activations import sparsity_of
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.ops import Program
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from tests.engine.flat.test_ops import close, of_row
from tests.engine.flat.test_weights import drawn
from tests.helpers import CAPACITY, assert_near, tokens

FAMILY = "gemma3n_text"


@torch.no_grad()
def test_gates_are_cut_as_in_a_stock_mlp(dtype: torch.dtype) -> None:
    mlp = tiny(FAMILY).to(dtype).model.layers[0].mlp
    x = drawn(5, 45, dtype=dtype)
    wanted, deviations = mlp._gaussian_topk(x), sparsity_of(mlp)
    assert deviations is not None
    found = of_row(x, lambda p, out: p.cut(p.hidden, out, deviations))
    assert 0 < int((found > 0).sum()) < found.numel() / 4 and close(found, wanted.double(), 4)


@pytest.mark.parametrize("step", ["predict", "correct", "leave", "looked_at", "beside"])
def test_a_step_that_is_left_out_is_found(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: streams.Streams, given: Any = None) -> Any:
        return {"looked_at": self.state, "beside": given}.get(step)

    monkeypatch.setattr(streams.Streams, step, nothing)
    stock = tiny(FAMILY)
    for layer in stock.model.layers:
        layer.altup.correct_output_scale.data.normal_()
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is None
    assert "layer 0 is off by" in model.path.why


def test_parts_of_other_sizes_are_not_mixed() -> None:
    program = Program(torch.float32, 12)
    factors, target = program.buffer(6), program.buffer(12)
    program.mix(program.hidden.part(0, 8), factors, target, 3)
    for source, by, parts in ((8, 6, 2), (8, 5, 3), (9, 6, 3)):
        with pytest.raises(ValueError, match=f"{parts} x"):
            program.mix(program.hidden.part(0, source), factors.part(0, by), target, parts)
    with pytest.raises(ValueError, match="where they are read from"):
        program.mix(target.part(0, 8), factors, target, 3)


def test_models_that_lack_blocks_run_as_they_did() -> None:
    stock, found = tiny(FAMILY), []
    for how in (FLAT, "eager"):
        model = StagedModel(copy.deepcopy(stock), passes=how)
        skipped = SkippedModel(model, {1}, {2})
        assert skipped.flat is None
        session = Session(model, CAPACITY)
        session.reset(tokens(6))
        with torch.inference_mode():
            session.prefill()
            found.append(skipped.over(session).advance(session.ids([4])))
    assert_near(*found)
