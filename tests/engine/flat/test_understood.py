"""What operations do not stand for is refused by name, and runs eagerly; the rest is as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention

from benchmarks.families import tiny
from ppdbench.engine.flat.choice import EAGER, FLAT
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel, eager
from tests import flat_ops
from tests.families import stock_model
from tests.helpers import CAPACITY, assert_near, tokens


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    flat_ops.stand_in(monkeypatch)


@torch.inference_mode()
def logits(model: StagedModel) -> Tensor:
    session = Session(model, CAPACITY)
    session.reset(tokens(11))
    session.prefill()
    step = None if model.remembers else session.tree((-1, 0, 0, 1))
    return session.logits(session.forward(session.ids(tokens(4, 7)), step))


@pytest.mark.parametrize("family", ["arcee", "biogpt", "gemma", "ministral", "olmo3", "starcoder2"])
def test_families_of_known_parts_run_flat_though_nothing_names_them(family: str) -> None:
    model = StagedModel(tiny(family), passes=FLAT)
    assert model.flat is not None, model.path.why
    found = logits(model)
    with eager(model):
        assert_near(found, logits(model))


def test_a_model_of_which_no_layer_attends_runs_eagerly() -> None:
    stock = tiny("mamba2")
    model, plain = (StagedModel(copy.deepcopy(stock), passes=how) for how in (FLAT, EAGER))
    assert model.flat is None
    assert "none of its layers attends" in model.path.why
    assert torch.equal(logits(model), logits(plain))


def test_code_that_no_operation_stands_for_is_named_and_runs_eagerly() -> None:
    class Sharpened(LlamaAttention):
        def forward(self, hidden_states: Tensor, **named: Any) -> Any:
            return super().forward(hidden_states.exp2(), **named)

    stock = stock_model("llama")
    stock.model.layers[2].self_attn.__class__ = Sharpened
    model, plain = (StagedModel(copy.deepcopy(stock), passes=how) for how in (FLAT, EAGER))
    assert model.flat is None
    assert "layer 2: Sharpened uses exp2" in model.path.why
    assert torch.equal(logits(model), logits(plain))


@torch.inference_mode()
def test_factors_before_the_head_are_seen_though_no_layer_has_them() -> None:
    model = StagedModel(tiny("minicpm3"), passes=FLAT)
    assert model.flat is not None and model.adapter.before_head != 1.0
    hidden = torch.randn(1, 3, model.hidden_size, generator=torch.Generator().manual_seed(0))
    found = model.flat.readout.read(hidden)
    assert found is not None
    assert_near(found.logits, model.adapter.logits(hidden))


def test_norms_of_another_kind_are_seen_before_the_head_too() -> None:
    class TripledNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return 3 * super().forward(x)

    stock = stock_model("gpt2")
    stock.transformer.ln_f = TripledNorm(stock.config.n_embd)
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is None
    assert "the norm TripledNorm is not known" in model.path.why


def test_weights_that_no_product_is_made_of_are_seen_in_blocks() -> None:
    gated, sunk = stock_model("llama"), stock_model("llama")  # neither code mentions the weights
    gated.model.layers[2].self_attn.gate = nn.Linear(4, 4)
    sunk.model.layers[2].self_attn.sinks = nn.Parameter(torch.zeros(4))
    for stock, why in (
        (gated, "layer 2: its part gate is not known"),
        (sunk, "layer 2: LlamaAttention has weights beside its parts"),
    ):
        model = StagedModel(stock, passes=FLAT)
        assert model.flat is None
        assert why in model.path.why
