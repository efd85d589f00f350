"""Blocks that are left out: nothing is added in their place, and the layer itself stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine.left_out import attention_bytes, exchanged, mlp_bytes, weight_bytes, without
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from tests.engine.silenced import PROMPT, pair, silenced, zeroed
from tests.helpers import CAPACITY, assert_near, staged


def test_every_weight_is_the_models_own() -> None:
    model = staged("gemma2", packed=False)
    own = {id(p) for p in model.model.parameters()}
    skipped = SkippedModel(model, {0, 1}, {1, 2})
    for layer in skipped.adapter.layers:
        assert {id(p) for p in layer.parameters()} <= own
    assert all("NoAttention" not in str(layer) for layer in model.adapter.layers)


@torch.inference_mode()
def test_a_forward_hung_on_a_layer_does_not_bring_the_blocks_back() -> None:
    stock, model = pair("llama")
    layer = model.adapter.layers[1]
    layer.forward = layer.forward  # an attribute of its own, bound to the original
    session = Session(SkippedModel(model, {1}, set()), CAPACITY)
    session.reset(PROMPT)
    with silenced(stock, {1}, set()):
        assert_near(session.prefill()[:, -1], stock(torch.tensor([PROMPT])).logits[:, -1])


def test_a_block_may_be_exchanged_however_deep_it_lies() -> None:
    layer, other = tiny("dbrx").transformer.blocks[0], torch.nn.Identity()
    twin: Any = exchanged(layer, "norm_attn_norm.attn", other)
    assert twin.norm_attn_norm.attn is other and layer.norm_attn_norm.attn is not other
    assert twin.ffn is layer.ffn and twin.norm_attn_norm.norm_1 is layer.norm_attn_norm.norm_1


def test_layers_of_an_unknown_kind_are_refused() -> None:
    _, model = pair("llama")
    model.adapter.layers[2] = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(UnsupportedModel, match="Sequential cannot be run without single blocks"):
        SkippedModel(model, {1}, set())


EXPERTS_TOO: dict[str, Any] = {"enable_moe_block": True, "top_k_experts": 2}


@pytest.mark.parametrize(
    ("family", "settings", "parts"),
    [
        ("granitemoehybrid", {}, ("block_sparse_moe", "shared_mlp")),
        ("granitemoehybrid", {"num_local_experts": 0}, ("shared_mlp",)),
        ("granitemoeshared", {"shared_intermediate_size": 24}, ("block_sparse_moe", "shared_mlp")),
        ("granitemoe_swa", {"shared_intermediate_size": 24}, ("block_sparse_moe", "shared_mlp")),
        ("gemma4_text", EXPERTS_TOO, ("mlp", "experts")),
    ],
)
@torch.inference_mode()
def test_all_that_feeds_forward_is_left_out_where_it_is_several_parts(
    family: str, settings: dict[str, Any], parts: tuple[str, ...]
) -> None:
    stock = tiny(family, **settings)
    model = StagedModel(copy.deepcopy(stock))
    layers = [stock.model.layers[i] for i in (1, 2)]
    assert mlp_bytes(model.adapter.blocks, layers[0]) == sum(
        weight_bytes(layers[0].get_submodule(name)) for name in parts
    )
    session = Session(SkippedModel(model, set(), {1, 2}), CAPACITY)
    session.reset(PROMPT)
    ours = session.prefill()[:, -1]
    for part in (layer.get_submodule(name) for layer in layers for name in parts):
        part.register_forward_hook(zeroed)
    assert_near(ours, stock(torch.tensor([PROMPT])).logits[:, -1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.inference_mode()
def test_experts_behind_a_norm_in_float32_are_left_out_in_half_precision(
    dtype: torch.dtype,
) -> None:
    model = tiny("gpt_oss").to(dtype)
    for layer in model.model.layers:
        layer.post_attention_layernorm.float()  # as it is loaded from files
    layer, hidden = model.model.layers[1], torch.randn(1, 3, 32, dtype=dtype)
    blocks = StagedModel(copy.deepcopy(model)).adapter.blocks
    twin = without(blocks, layer, attention=False, mlp=True)
    added, said = twin.mlp(hidden)
    assert (added.dtype, bool(added.any()), said) == (dtype, False, None)


@torch.inference_mode()
def test_a_twin_shares_its_modules_and_lacks_only_what_was_left_out() -> None:
    _, model = pair("llama")
    blocks, layer = model.adapter.blocks, model.adapter.layers[1]
    before = dict(layer.named_children())
    twin = without(blocks, layer, attention=True, mlp=False)
    hidden = torch.randn(1, 3, 32)
    assert not twin.self_attn(hidden)[0].any()
    assert twin.self_attn(hidden)[1] is None
    assert twin.mlp is layer.mlp
    other = without(blocks, layer, attention=False, mlp=True)
    assert not other.mlp(hidden).any()
    assert other.self_attn is layer.self_attn
    assert dict(layer.named_children()) == before


@torch.inference_mode()
def test_rows_that_others_look_at_are_made_though_nothing_is_added() -> None:
    _, model = pair("llama")
    layer = model.adapter.layers[1]
    seen: list[torch.Tensor] = []
    block = torch.nn.Module()
    block.forward = lambda hidden: (seen.append(hidden), (hidden + 1, "weights"))[1]  # type: ignore[method-assign]
    layer.self_attn = block
    twin = without(model.adapter.blocks, layer, attention=True, mlp=False, looked_at=True)
    hidden = torch.randn(1, 3, 32)
    added, other = twin.self_attn(hidden)
    assert (len(seen), other) == (1, None)
    assert torch.equal(added, torch.zeros_like(hidden))


def test_bytes_of_blocks_add_up_to_those_of_their_layer() -> None:
    stock, model = pair("llama")
    layer = stock.model.layers[0]
    norms = layer.input_layernorm, layer.post_attention_layernorm
    parts = attention_bytes(model.adapter.blocks, layer) + mlp_bytes(model.adapter.blocks, layer)
    assert parts + sum(map(weight_bytes, norms)) == weight_bytes(layer)
