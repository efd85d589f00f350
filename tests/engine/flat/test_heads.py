"""Heads in the products of attention blocks, and how scores are made, beside stock code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.families import tiny
from ppdbench.engine.families import Slopes, entry
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.heads import order_of, scaling_of, slopes_of, weights_beside
from ppdbench.engine.flat.understood import NotUnderstoodError
from ppdbench.engine.staged import StagedModel

HEADS, DIM = 4, 8


def block_of(family: str, **settings: Any) -> Any:
    model = tiny(family, **settings)
    names = ("Attention", "SelfAttention")
    blocks = (m for m in model.modules() if type(m).__name__.endswith(names))
    return [block for block in blocks if any(isinstance(m, nn.Linear) for m in block.children())]


@pytest.mark.parametrize(
    ("family", "settings", "kv_heads"),
    [
        ("falcon", {"multi_query": True}, 1),
        ("falcon", {"multi_query": False}, HEADS),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, HEADS),
        ("bloom", {}, HEADS),
    ],
)
def test_queries_keys_and_values_are_those_that_stock_code_splits(
    family: str, settings: dict[str, Any], kv_heads: int
) -> None:
    block = block_of(family, **settings)[0]
    given = torch.randn(1, 1, block.query_key_value.out_features)
    split = block._split_heads if family == "falcon" else block._reshape
    wanted = torch.cat([part.flatten() for part in split(given)])
    assert len(wanted) == (HEADS + 2 * kv_heads) * DIM
    order = order_of(block, entry(family), HEADS, DIM)
    assert order is not None
    assert torch.equal(given[0, 0, order], wanted)


def test_quarters_of_heads_stand_together_in_codegen() -> None:
    order = order_of(block_of("codegen")[0], entry("codegen"), 2 * HEADS, DIM)
    assert order is not None
    heads = (order.view(-1, DIM)[:, 0] // DIM).tolist()
    queries, keys, values = (heads[i * 8 : i * 8 + 8] for i in range(3))
    assert queries == [0, 1, 6, 7, 12, 13, 18, 19]
    assert values == [q + 2 for q in queries]
    assert keys == [q + 4 for q in queries]


@pytest.mark.parametrize("family", ["llama", "bloom", "mpt", "gptj", "gpt_neox_japanese"])
def test_scores_are_scaled_by_the_width_of_heads(family: str) -> None:
    assert scaling_of(block_of(family)[0], entry(family)) == pytest.approx(DIM**-0.5)


def test_a_block_that_does_not_say_how_scores_are_scaled_is_refused() -> None:
    block = block_of("gpt_neo")[0]
    assert scaling_of(block, entry("gpt_neo")) == 1.0
    with pytest.raises(NotUnderstoodError, match="does not say how scores are scaled"):
        scaling_of(block, entry("llama"))


def test_slopes_are_those_of_scores_before_they_are_scaled() -> None:
    slopes = torch.tensor([0.5, 0.25])
    found, coarse = slopes_of(Slopes(slopes), 0.25)
    assert found is not None and torch.equal(found, slopes * 4) and not coarse
    found, coarse = slopes_of(Slopes(slopes.bfloat16(), scaled=True), 0.25)
    assert found is not None and torch.equal(found, slopes) and coarse
    assert slopes_of(None, 0.25) == (None, False)


def test_weights_beside_products_are_those_that_code_reads() -> None:
    first, *_, last = block_of("gpt_neox_japanese")
    assert not weights_beside(first)
    assert weights_beside(last).keys() == {"dense_bias"}
    sunk = block_of("llama")[0]
    sunk.sinks = nn.Parameter(torch.zeros(HEADS))
    assert not weights_beside(sunk)


@pytest.mark.parametrize(
    ("family", "settings", "why"),
    [
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "added to what its norms"),
        ("bloom", {"slow_but_exact": True}, "dense is Linear, no plain product"),
    ],
)
def test_what_attention_of_their_own_does_besides_is_refused_by_name(
    family: str, settings: dict[str, Any], why: str
) -> None:
    model = StagedModel(tiny(family, **settings), passes=FLAT)
    assert model.flat is None
    assert why in model.path.why


def test_products_of_other_names_are_laid_out_too() -> None:
    model = StagedModel(tiny("falcon"), passes=FLAT)
    kinds = {type(m).__name__ for layer in model.adapter.layers for m in layer.modules()}
    assert "FlatProduct" in kinds and "FalconLinear" not in kinds


def test_told_slopes_are_in_the_type_that_layers_add_them_to() -> None:
    model = StagedModel(tiny("bloom").bfloat16())
    tells = model.adapter._tells
    assert tells is not None
    step = SimpleNamespace(key_places=lambda: torch.arange(5)[None], key_length=5)
    for dtype in (torch.bfloat16, torch.float32):
        assert tells(step, dtype)["alibi"].dtype == dtype  # type: ignore[arg-type]
