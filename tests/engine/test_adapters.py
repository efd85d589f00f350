"""Adapters: the parts of a loaded model, found under their names and with their sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.families import FAMILIES, WINDOW, greedy_truth, stock_model
from tests.helpers import CAPACITY, WINDOWED, assert_near, tokens

IDS = tokens(9)


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_lie_where_their_names_say(name: str) -> None:
    stock = stock_model(name)
    adapter = Adapter(stock)
    assert stock.get_submodule(adapter.embedding_path()) is stock.get_input_embeddings()
    assert stock.get_submodule(adapter.head_path()) is stock.get_output_embeddings()
    assert len(adapter.layers) == stock.config.num_hidden_layers
    for index, layer in enumerate(adapter.layers):
        assert stock.get_submodule(adapter.layer_path(index)) is layer


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_before_and_behind_the_layers_stands_what_stands_there_in_transformers(name: str) -> None:
    stock, ids = stock_model(name), torch.tensor([tokens(9)])
    seen: dict[str, torch.Tensor] = {}
    model = StagedModel(stock_model(name), packed=False)
    _, steps = model.new_cache(CAPACITY)
    layers = Adapter(stock).layers

    def keep(module: object, given: object, out: Any) -> None:
        seen["last"] = out if torch.is_tensor(out) else out[0]

    layers[-1].register_forward_hook(keep)
    found = stock(ids, output_hidden_states=True)
    embedded = model.adapter.embed(ids, steps.chain(0, 9))
    assert_near(embedded, found.hidden_states[0])
    if model.adapter.enters_by_row():
        assert torch.equal(model.adapter.held_words[ids], embedded)
    assert_near(model.adapter.logits(seen["last"]), found.logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["mamba", "mamba2", "falcon_mamba"])
@torch.inference_mode()
def test_the_head_is_handed_its_own_type_where_layers_keep_states_in_float32(
    family: str, dtype: torch.dtype
) -> None:
    stock = tiny(family).to(dtype)
    for packed in (False, True):
        model = StagedModel(copy.deepcopy(stock), packed=packed)
        session, seen = Session(model, CAPACITY), []
        session.reset(IDS)
        logits = session.prefill(tap=lambda _, hidden, seen=seen: seen.append(hidden))
        assert {hidden.dtype for hidden in seen} == {torch.float32}
        normed = model.adapter.norm(seen[-1])
        assert normed.dtype == model.adapter.readout(normed).dtype == logits.dtype == dtype
        found = []
        for _ in range(12):
            found.append(int(logits[0, -1].argmax()))
            logits = session.advance(session.ids(found[-1:]))
        assert found == greedy_truth(stock, IDS, 12)
    checked = take_over(ModelSpec(name="tiny", device="cpu"), copy.deepcopy(stock), None)
    assert checked.staged.dtype == dtype


@torch.inference_mode()
def test_a_head_in_a_wider_type_than_the_words_is_handed_what_it_was() -> None:
    adapter = Adapter(stock_model("llama").to(torch.bfloat16))
    adapter.head, hidden = adapter.head.float(), torch.randn(1, 2, 32)
    assert adapter.final_norm is not None
    adapter.final_norm.float()
    assert torch.equal(adapter.norm(hidden), adapter.final_norm(hidden))
    assert adapter.logits(hidden).dtype == torch.float32


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_are_those_of_the_configuration(name: str) -> None:
    adapter = Adapter(stock_model(name))
    config, shape = adapter.config, adapter.cache_shape
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert (shape.n_layers, shape.n_heads, shape.head_dim) == (4, heads, width)
    assert set(adapter.heads_per_kv) == {config.num_attention_heads // heads}
    assert adapter.is_tied() == config.tie_word_embeddings
    assert adapter.narrowest_window == (WINDOW if name in WINDOWED else None)
    assert (adapter.hidden_size, adapter.max_positions) == (32, 96)
    assert adapter.head_width == (16 if name == "opt-350m-like" else 32)


def test_other_layers_stand_in_a_twin_alone() -> None:
    adapter, other = Adapter(stock_model("llama")), Adapter(stock_model("llama", 1)).layers[1]
    own = list(adapter.layers)
    twin = adapter.with_layers({1: other})
    assert twin.layers == [own[0], other, *own[2:]]
    assert adapter.layers == own
    adapter.prepare(CAPACITY)
    _, steps = StagedModel(stock_model("llama"), packed=False).new_cache(CAPACITY)
    hidden, rotary = torch.randn(1, 1, 32), adapter.rotary(steps.chain(0, 1), None)
    for index in range(4):
        mine, theirs = (
            one.call_layer(index, hidden, None, rotary, None) for one in (adapter, twin)
        )
        assert torch.equal(mine, theirs) == (index != 1)


def test_dropped_layers_hold_no_numbers_and_stay_what_they_are() -> None:
    adapter = Adapter(stock_model("llama").to(torch.bfloat16))
    adapter.drop([1, 2])
    held = [sum(p.numel() for p in layer.parameters()) for layer in adapter.layers]
    assert held[1] == held[2] == 0 < held[0] == held[3]
    assert {p.dtype for p in adapter.layers[1].parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("name", "left"), [("llama", 0), ("llama-mha-tied", 96 * 32)])
def test_an_embedding_that_the_head_reads_is_not_dropped(name: str, left: int) -> None:
    adapter = Adapter(stock_model(name))
    adapter.drop_embedding()
    assert sum(p.numel() for p in adapter.embedding.parameters()) == left
    assert sum(p.numel() for p in adapter.head.parameters()) == 96 * 32


def test_parts_of_a_range_are_its_layers_and_what_reads_out_behind_them() -> None:
    adapter = Adapter(stock_model("llama"))
    behind = [adapter.final_norm, adapter.head]
    assert adapter.parts(range(2, 4)) == [*adapter.layers[2:], *behind]
    assert adapter.parts(range(1)) == [adapter.embedding, adapter.layers[0], *behind]
    assert list(adapter.readout_parts()) == behind


def test_soft_caps_bound_logits_where_a_family_has_them() -> None:
    far = torch.tensor([1e6, -1e6, 0.0])
    assert Adapter(stock_model("gemma2")).cap(far).tolist() == [3.0, -3.0, 0.0]
    assert torch.equal(Adapter(stock_model("llama")).cap(far), far)
