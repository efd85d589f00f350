"""Latent attention as operations: the numbers of stock layers, and mistakes that are found out."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.flat import latent, layers, passes
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.latent import HeadProducts, LatentSizes, head_products
from ppdbench.engine.flat.understood import NotUnderstoodError, RefusedError
from ppdbench.engine.flat.weights import FlatLinear, pack
from ppdbench.engine.footprint import measure, on_meta
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, eager
from tests.engine.flat.test_weights import drawn
from tests.helpers import CAPACITY, assert_near, tokens

TEXT, MORE = tokens(11), [7, 8, 9, 10, 11]
SIZES = LatentSizes(heads=3, plain=5, turned=4, value=7, latent=33)
# Scores of positions that are stretched are scaled by more than the width of heads.
STRETCHED = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 40,
}
PLAIN, LATENT = 8, 24  # of tiny models
SETTINGS = {"kv_lora_rank": LATENT, "rope_parameters": STRETCHED}


def made(stock: Any) -> StagedModel:
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is not None, model.path.why
    return model


@torch.inference_mode()
def after(session: Session) -> Tensor:
    """Logits of a chain, and of a row behind it."""
    chain = session.logits(session.forward(session.ids(MORE)))
    return torch.cat([chain, session.advance(session.ids([5]))], dim=1)


def started(model: StagedModel) -> Session:
    session = Session(model, CAPACITY)
    session.reset(TEXT)
    with torch.inference_mode():
        session.prefill()
    return session


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_taken_apart_by_heads_once(dtype: torch.dtype) -> None:
    weight = drawn(3 * (5 + 7), 33, dtype=dtype)
    product = pack(weight)
    apart = head_products(product, SIZES)
    heads = weight.view(3, 12, 33)
    for rows, to_latents, to_values in zip(heads, apart.to_latents, apart.to_values, strict=True):
        assert torch.equal(to_latents.unpacked(), rows[:5].t())
        assert torch.equal(to_values.unpacked(), rows[5:])
    assert head_products(product, SIZES) is apart
    kept = weakref.ref(to_values)
    del product, apart, to_latents, to_values
    gc.collect()
    assert kept() is None  # with the product itself


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("plain", "value", "shared"), [(32, 64, 3), (64, 32, 3), (16, 32, 1), (32, 7, 0), (8, 32, 0)]
)
def test_values_are_made_by_the_product_itself_where_they_lie_in_blocks(
    plain: int, value: int, shared: int, dtype: torch.dtype
) -> None:
    sizes = LatentSizes(heads=3, plain=plain, turned=4, value=value, latent=33)
    weight = drawn(3 * (plain + value), 33, dtype=dtype)
    product = pack(weight)
    apart = head_products(product, sizes)
    assert sum(each.lies_in(product) for each in apart.to_values) == shared
    assert apart.nbytes == sizes.copied_bytes(dtype)
    gathered = drawn(5, 33, dtype=dtype)
    for rows, to_value in zip(weight.view(3, -1, 33), apart.to_values, strict=True):
        assert torch.equal(to_value.unpacked(), rows[plain:])
        assert torch.equal(to_value(gathered), pack(rows[plain:])(gathered))


def memories(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by the places where they are."""
    storages = (each.untyped_storage() for each in tensors if each.numel())
    return {memory.data_ptr(): memory.nbytes() for memory in storages}


def laid_out() -> set[FlatLinear]:
    """All weights that are laid out flat anywhere."""
    gc.collect()
    return {each for each in gc.get_objects() if type(each) is FlatLinear}


@pytest.mark.parametrize("family", ["minicpm3", "youtu"])
@pytest.mark.parametrize("wide", [32, 16])
def test_memory_is_reckoned_with_what_is_held_once_more(family: str, wide: int) -> None:
    # Blobs of these sizes are filled up with nothing.
    sizes = {"kv_lora_rank": 64, "qk_nope_head_dim": wide, "v_head_dim": 2 * wide}
    others = {"qk_rope_head_dim": 32, "q_lora_rank": 32, "hidden_size": 64, "vocab_size": 96}
    stock = tiny(family, **sizes, **others, intermediate_size=96)
    need = measure(on_meta(stock.config, torch.float32), torch.device("cpu"), 64)
    before = laid_out()
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is not None, model.path.why
    assert need.turned > 0
    tables = sum(b.numel() * b.element_size() for b in model.model.buffers())
    assert need.weights == model.weight_bytes() - tables
    flat = (each.blob for each in laid_out() - before)
    assert need.weights == sum(memories([*model.model.parameters(), *flat]).values())


def test_products_that_hold_other_weights_or_a_bias_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = drawn(3 * (5 + 7), 33)
    with pytest.raises(NotUnderstoodError, match="has a bias"):
        head_products(pack(weight, drawn(36)), SIZES)
    monkeypatch.setattr(latent, "pack", lambda given: pack(given + 1))
    with pytest.raises(RefusedError, match="holds other weights"):
        head_products(pack(weight), SIZES)


@pytest.mark.parametrize("family", ["minicpm3", "youtu"])
def test_scores_are_scaled_as_the_model_says_and_numbers_are_those_of_float64(family: str) -> None:
    stock = tiny(family, **SETTINGS)
    block = stock.model.layers[0].self_attn
    assert block.scaling > 1.2 * block.qk_head_dim**-0.5
    found = after(started(made(copy.deepcopy(stock))))
    with torch.no_grad():
        wanted = stock.double()(torch.tensor([[*TEXT, *MORE, 5]])).logits
    assert_near(found.double(), wanted[:, -len(MORE) - 1 :])


@pytest.mark.parametrize("family", ["minicpm3", "youtu"])
def test_eager_passes_go_on_from_what_flat_ones_have_kept_and_the_other_way_round(
    family: str,
) -> None:
    model = made(tiny(family))
    flat = started(model)
    with eager(model):
        plain = started(model)
        crossed = after(flat)
    assert_near(after(plain), crossed)
    for ours, theirs in zip(flat.cache.rows(1), plain.cache.rows(1), strict=True):
        assert_near(ours, theirs)


@torch.inference_mode()
def test_models_that_lack_blocks_share_the_products_of_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made(tiny("youtu"))
    monkeypatch.setattr(latent, "pack", None)  # nothing is laid out again
    skipping = SkippedModel(model, {1}, {2})
    assert skipping.flat is not None
    with eager(model):
        plainly = SkippedModel(model, {1}, {2})
    found = []
    for one in (skipping, plainly):
        session = started(model)
        found.append(one.over(session).advance(session.ids([5])))
    assert_near(*found)


# Bugs that somebody could make where layers are written.


def _turned_from_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first numbers of queries are turned, not the last."""
    real = passes.Program.pick_heads

    def pick_heads(self: Any, source: Any, target: Any, order: Tensor) -> None:
        real(self, source, target, order - PLAIN if len(order) > 1 else order)

    monkeypatch.setattr(passes.Program, "pick_heads", pick_heads)


def _turned_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of keys are taken from where those of queries are not."""
    real = passes.Program.pick

    def pick(self: Any, source: Any, target: Any, order: Tensor) -> None:
        real(self, source, target, torch.arange(len(order)))

    monkeypatch.setattr(passes.Program, "pick", pick)


def _unnormed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latents are kept as they come."""
    real = latent.write_norm

    def write_norm(program: Any, norm: Any, source: Any, target: Any) -> None:
        if source.width != LATENT:
            real(program, norm, source, target)

    monkeypatch.setattr(latent, "write_norm", write_norm)


def _scaled_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are scaled by the width of heads alone."""
    monkeypatch.setattr(layers, "scaling_of", lambda block, family: block.qk_head_dim**-0.5)


def _values_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head has the values of another."""

    def swapped(product: FlatLinear, sizes: LatentSizes) -> HeadProducts:
        apart = head_products(product, sizes)
        return HeadProducts(apart.to_latents, apart.to_values[::-1], apart.nbytes)

    monkeypatch.setattr(latent, "head_products", swapped)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    *(_turned_from_the_front, _turned_in_place, _unnormed, _scaled_by_width, _values_of_others)
]


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_written_wrongly_differs_from_the_layer_itself(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = tiny("youtu", **SETTINGS)
    made(copy.deepcopy(stock))
    bug(monkeypatch)
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is None
    assert "layer 0 is off by" in model.path.why
