"""What operations do not stand for is refused by name, and runs eagerly; the rest is as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.families import tiny
from ppdbench.engine.flat.choice import EAGER, FLAT
from ppdbench.engine.flat.understood import NotUnderstoodError, check_rotation
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
    step = session.tree((-1, 0, 0, 1))
    return session.logits(session.forward(session.ids(tokens(4, 7)), step))


@pytest.mark.parametrize("family", ["arcee", "biogpt", "gemma", "ministral", "olmo3", "starcoder2"])
def test_families_of_known_parts_run_flat_though_nothing_names_them(family: str) -> None:
    model = StagedModel(tiny(family), passes=FLAT)
    assert model.flat is not None, model.path.why
    found = logits(model)
    with eager(model):
        assert_near(found, logits(model))


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("granitemoe", "its layers choose between experts"),
        ("bloom", "its layers attend in code of their own"),
        ("ministral3", "its layers place rows in code of their own"),
        ("minicpm3", "its keys and values are of different widths"),
        ("granite", "GraniteDecoderLayer uses residual_multiplier"),
        ("granite_swa", "GraniteSWADecoderLayer uses residual_multiplier"),
        ("cohere", "CohereAttention uses flatten"),
        ("smollm3", "SmolLM3Attention uses use_rope"),
        ("exaone4", "Exaone4Attention uses is_sliding"),
        ("bitnet", "BitNetAttention uses attn_sub_norm"),
        ("nemotron", "the norm NemotronLayerNorm1P is not known"),
        ("nanochat", "it has the norms none"),
        ("hunyuan_v1_dense", "uses key_layernorm, query_layernorm"),
    ],
)
def test_what_no_operation_stands_for_is_named_and_runs_eagerly(family: str, why: str) -> None:
    model, plain = (StagedModel(tiny(family), passes=how) for how in (FLAT, EAGER))
    assert model.flat is None
    assert why in model.path.why
    assert torch.equal(logits(model), logits(plain))


def test_factors_behind_the_head_are_seen_though_no_layer_has_them() -> None:
    stock = stock_model("llama")
    stock.config.logits_scaling = 2.0
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is None
    assert "factors stand before its head or behind it" in model.path.why


def test_norms_of_another_kind_are_seen_before_the_head_too() -> None:
    class OnePlusNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.layer_norm(
                x, self.normalized_shape, self.weight + 1, self.bias, self.eps
            )

    stock = stock_model("gpt2")
    stock.transformer.ln_f = OnePlusNorm(stock.config.n_embd)
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is None
    assert "the norm OnePlusNorm is not known" in model.path.why


def test_weights_that_no_product_is_made_of_are_seen_in_blocks() -> None:
    gated, sunk = stock_model("llama"), stock_model("llama")
    gated.model.layers[2].self_attn.gate = nn.Linear(4, 4)
    sunk.model.layers[2].self_attn.sinks = nn.Parameter(torch.zeros(4))
    for stock, why in (
        (gated, "layer 2: its part gate is not known"),
        (sunk, "layer 2: LlamaAttention has weights beside its parts"),
    ):
        model = StagedModel(stock, passes=FLAT)
        assert model.flat is None
        assert why in model.path.why


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours are turned, not halves."""
    turned = [
        x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin for x in (q, k)
    ]
    return turned[0], turned[1]


class Attention(nn.Module):
    """Attention that turns heads by the function above."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return apply_rotary_pos_emb(x, x, cos, sin)[0]


class Unturned(nn.Module):
    """Attention that turns none."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("block", [Attention(), Unturned()])
def test_heads_that_are_turned_in_another_way_are_refused(block: nn.Module) -> None:
    check_rotation(stock_model("llama").model.layers[0].self_attn, 8, 8)
    with pytest.raises(NotUnderstoodError, match="turns heads in a way of its own, or none"):
        check_rotation(block, 8, 8)
