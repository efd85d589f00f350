"""A model without some blocks is the stock model whose blocks contribute nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.left_out import mlp_bytes, weight_bytes
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from tests.families import FAMILIES, stock_model
from tests.helpers import CAPACITY, assert_near, staged, tokens

# What is added to the residual stream, by family: the modules whose outputs are zeroed.
ADDED = {
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gemma3_text": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gpt2": ("attn", "mlp"),
    "gpt_neox": ("attention", "mlp"),
    "opt": ("self_attn", "fc2"),
}
SETS: list[tuple[set[int], set[int]]] = [
    (set(), set()),
    ({1}, set()),
    (set(), {2}),
    ({1, 2}, {2}),
    ({0, 3}, {0, 1}),
    ({0, 1, 2, 3}, {1, 2, 3}),
    ({0, 1, 2}, {0, 1, 2, 3}),
]
PROMPT = tokens(13, 2)
NEW = tokens(4, 3)


def zeroed(_module: object, _inputs: object, output: Any) -> Any:
    if isinstance(output, tuple):
        return (torch.zeros_like(output[0]), *output[1:])
    return torch.zeros_like(output)


@contextmanager
def silenced(stock: Any, attention: set[int], mlp: set[int]) -> Iterator[None]:
    """The stock model with blocks that add nothing to the residual stream."""
    names = ADDED.get(stock.config.model_type, ("self_attn", "mlp"))
    kind = stock.config.model_type
    path = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers", "opt": "model.decoder.layers"}
    layers = stock.get_submodule(path.get(kind, "model.layers"))
    hooks = [
        layers[i].get_submodule(name).register_forward_hook(zeroed)
        for name, skipped in zip(names, (attention, mlp), strict=True)
        for i in skipped
    ]
    yield
    for hook in hooks:
        hook.remove()


def pair(name: str, packed: bool = True) -> tuple[Any, StagedModel]:
    stock = stock_model(name)
    return stock, StagedModel(copy.deepcopy(stock), packed=packed)


def prefilled(model: StagedModel, fixed_rows: int | None = None) -> Session:
    session = Session(model, CAPACITY, spare=8, fixed_rows=fixed_rows)
    session.reset(PROMPT)
    session.prefill()
    return session


def drafted(view: Session, new: list[int]) -> list[Tensor]:
    """Logits after each of `new`, run one by one behind the prompt."""
    return [
        view.logits(view.forward(view.ids([token]), view.chain(1, len(PROMPT) + i)))[0, -1]
        for i, token in enumerate(new)
    ]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@torch.inference_mode()
def test_skipped_blocks_contribute_nothing(name: str, packed: bool) -> None:
    stock, model = pair(name, packed)
    for attention, mlp in SETS:
        session = Session(SkippedModel(model, attention, mlp), CAPACITY)
        session.reset(PROMPT * 2)
        ours = session.prefill()[:, -1]
        with silenced(stock, attention, mlp):
            truth = stock(torch.tensor([PROMPT * 2])).logits[:, -1]
        assert_near(ours, truth)


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_drafts_run_over_the_exact_rows_of_the_whole_model(name: str) -> None:
    stock, model = pair(name)
    for attention, mlp in SETS:
        view = SkippedModel(model, attention, mlp).over(prefilled(model))
        ours = drafted(view, NEW)
        cache = stock(torch.tensor([PROMPT]), use_cache=True).past_key_values
        with silenced(stock, attention, mlp):
            for token, logits in zip(NEW, ours, strict=True):
                truth = stock(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                assert_near(logits, truth.logits[0, -1])


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_the_whole_model_stays_as_it_was(name: str) -> None:
    model = staged(name)
    session = prefilled(model)
    before = session.logits(session.forward(session.ids(NEW)))
    held = [tuple(t.clone() for t in session.cache.rows(i)) for i in range(model.n_layers)]
    session.cache.truncate(len(PROMPT))
    drafted(SkippedModel(model, {1, 2}, {0, 2}).over(session), tokens(4, 8))
    session.cache.truncate(len(PROMPT))
    assert torch.equal(session.logits(session.forward(session.ids(NEW))), before)
    for i, rows in enumerate(held):
        assert all(map(torch.equal, session.cache.rows(i), rows))


@torch.inference_mode()
def test_layers_without_attention_keep_their_rows_and_length() -> None:
    model = staged("llama")
    session = prefilled(model)
    untouched = session.cache._keys[1].clone()
    drafted(SkippedModel(model, {1, 3}, {0}).over(session), NEW)
    n = len(PROMPT)
    assert session.cache.lengths == {0: n + 4, 1: n, 2: n + 4, 3: n}
    assert session.cached == n
    assert torch.equal(session.cache._keys[1], untouched)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "opt-350m-like"])
@torch.inference_mode()
def test_a_fixed_shape_changes_nothing(name: str) -> None:
    model = staged(name)
    skipped = SkippedModel(model, {1, 2}, {2, 3})
    free = drafted(skipped.over(prefilled(model)), NEW)
    fixed = drafted(skipped.over(prefilled(model, fixed_rows=6)), NEW)
    for ours, truth in zip(fixed, free, strict=True):
        assert_near(ours, truth)


@torch.inference_mode()
def test_a_layer_of_which_nothing_is_left_is_not_called() -> None:
    model = staged("llama")
    skipped = SkippedModel(model, {1, 2}, {1, 3})
    called: list[int] = []
    call = skipped.adapter.call_layer

    def noted(index: int, *arguments: Any) -> Tensor:
        called.append(index)
        return call(index, *arguments)

    skipped.adapter.call_layer = noted  # type: ignore[method-assign]
    session = Session(skipped, CAPACITY)
    session.reset(PROMPT)
    each: list[int] = []
    session.prefill(tap=lambda layer, _hidden: each.append(layer))
    assert called == [0, 2, 3]
    assert each == [1, 2, 3, 4]


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


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_cost_is_the_share_of_weights_that_a_pass_reads(packed: bool) -> None:
    model = staged("llama", packed)
    attention, mlp, head = 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 48, 96 * 32
    whole = 4 * (attention + mlp) + head
    assert SkippedModel(model, set(), set()).cost() == 1
    cost = SkippedModel(model, {0, 2, 3}, {1}).cost()
    assert cost == pytest.approx((whole - 3 * attention - mlp) / whole)


def test_a_layer_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"layer 4: use 0\.\.3"):
        SkippedModel(staged("llama"), {4}, set())


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
