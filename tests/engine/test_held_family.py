"""What was read of a model is held against transformers, and a wrong reading is refused."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine import held_family
from ppdbench.engine.experts import experts_in
from ppdbench.engine.families import FAMILIES, Family
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from tests.families import stock_model

ETTIN = FAMILIES.get("modernbert-decoder")


def checked(model: object) -> None:
    take_over(ModelSpec(name="tiny", device="cpu"), copy.deepcopy(model), None)


def test_a_model_that_is_read_rightly_is_let_through_in_every_type() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        checked(stock_model("mistral-window").to(dtype))
        checked(tiny("granitemoe").to(dtype))
        checked(tiny("phimoe").to(dtype))


@pytest.mark.parametrize("family", ["phimoe", "mixtral", "gpt_oss"])
def test_in_half_precision_experts_that_compute_something_else_are_found(family: str) -> None:
    model = tiny(family).bfloat16()
    stock = held_family.stock_pass(model)
    ours = copy.deepcopy(model)
    experts_in(ours.model.layers)[0].down_proj.data.neg_()
    with pytest.raises(UnsupportedModel, match="after layer 1 hidden states"):
        held_family.hold(StagedModel(ours), stock, "tiny")
    held_family.hold(StagedModel(model), stock, "tiny")


@pytest.mark.parametrize(
    ("family", "entry", "said"),
    [
        ("nanochat", Family(name="nanochat"), "after layer 1 hidden states lie"),
        ("hyperclovax", Family(name="hyperclovax"), "logits lie"),
        ("afmoe", Family(name="afmoe"), "after layer 1 hidden states lie"),
        ("modernbert-decoder", replace(ETTIN, embedding_norm=None), "after layer 1 hidden states"),
        ("modernbert-decoder", replace(ETTIN, transform=None), "logits lie"),
    ],
)
def test_what_an_entry_leaves_out_is_found(
    monkeypatch: pytest.MonkeyPatch, family: str, entry: Family, said: str
) -> None:
    model = tiny(family, mup_enabled=True, logits_scaling=0.5)
    checked(model)
    monkeypatch.setitem(FAMILIES._items, family, entry)
    with pytest.raises(UnsupportedModel, match=f"{said}.*of their length.*--no-family-check"):
        checked(model)
    spec = ModelSpec(name="tiny", device="cpu", family_check=False)
    take_over(spec, copy.deepcopy(model), None)


def test_sinks_that_attention_swallows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AttentionInterface

    from ppdbench.engine import attention

    model = tiny("gpt_oss")

    def deaf(*given: object, s_aux: object = None, **others: object) -> object:
        return attention_as_it_is(*given, **others)  # type: ignore[arg-type]

    attention_as_it_is = attention.attend
    monkeypatch.setattr(attention, "attend", deaf)
    try:
        with pytest.raises(UnsupportedModel, match="read as family gpt_oss, after layer 1"):
            checked(model)
    finally:
        AttentionInterface.register(attention.NAME, attention_as_it_is)


def test_a_single_odd_layer_is_found_though_it_is_none_of_the_first() -> None:
    model = tiny("smollm3", no_rope_layers=[1, 1, 1, 0])
    stock = held_family.stock_pass(model)
    assert len(stock.states) == 4
    ours = copy.deepcopy(model)
    ours.model.layers[3].self_attn.use_rope = 1
    with pytest.raises(UnsupportedModel, match="after layer 4 hidden states"):
        held_family.hold(StagedModel(ours), stock, "tiny")


def test_of_small_models_every_layer_is_held_though_all_are_alike() -> None:
    model = stock_model("llama")
    stock = held_family.stock_pass(model)
    assert len(stock.states) == len(model.model.layers) > held_family.ENOUGH
    ours = copy.deepcopy(model)
    ours.model.layers[-1].mlp.down_proj.weight.data.neg_()
    with pytest.raises(UnsupportedModel, match=f"after layer {len(stock.states)} hidden states"):
        held_family.hold(StagedModel(ours), stock, "tiny")


@pytest.mark.parametrize(("weights", "held"), [(0, 2), (3, 3), (9, 4)])
def test_of_layers_that_are_alike_the_first_stand_for_all(
    monkeypatch: pytest.MonkeyPatch, weights: int, held: int
) -> None:
    model = stock_model("llama")
    layers = list(model.model.layers)
    assert len(layers) == 4
    each = sum(p.numel() for p in layers[0].parameters())
    monkeypatch.setattr(held_family, "ALIKE_WEIGHTS", weights * each)
    stock = held_family.stock_pass(model)
    assert len(stock.states) == held
    assert list(model.model.layers) == layers
    held_family.hold(StagedModel(model), stock, "tiny")


def test_layers_that_cannot_be_called_are_refused_in_one_line() -> None:
    model = stock_model("llama")
    stock = held_family.stock_pass(model)
    staged = StagedModel(model)
    staged.adapter.anatomy = replace(staged.adapter.anatomy, tables=False)
    with pytest.raises(UnsupportedModel) as refused:
        held_family.hold(staged, stock, "tiny")
    assert re.search(r"its layers cannot be called one by one", str(refused.value))
    assert "\n" not in str(refused.value)
