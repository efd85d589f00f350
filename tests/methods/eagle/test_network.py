"""The network of EAGLE against what the papers say that it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ppdbench.errors import UnsupportedModel
from ppdbench.methods.eagle.network import (
    feature_layers,
)
from ppdbench.methods.eagle.rows import DraftRows
from ppdbench.methods.eagle.strategy import Eagle
from tests.decoding.matrix import CAPACITY
from tests.families import stock_model
from tests.helpers import assert_near, staged
from tests.methods.eagle.made import (
    DRAFTED,
    PROMPTS,
    published,
    random_drafter,
    random_network,
    setup,
    tensors_of,
    true_features,
    watch,
    written,
)


def test_only_the_draft_vocabulary_is_drafted(tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, 3, tmp_path)
    known = set(decoder.network.all_words().tolist())
    assert len(known) == DRAFTED
    drafted = {token for _, draft in watch(decoder, model, 40) for token in draft.tokens}
    assert drafted <= known
    assert max(drafted) >= DRAFTED, "the map was not used"


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def turned(x: Tensor) -> Tensor:
    """Rotary positions 0, 1, ... on [heads, n, 8]."""
    angles = torch.arange(x.shape[1])[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :4], x[..., 4:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def attended(x: Tensor, t: dict[str, Tensor], prefix: str) -> Tensor:
    """Four heads of 8 over two heads of keys and values, causally; x [n, any]."""
    q, k, v = (
        (x @ t[f"{prefix}self_attn.{name}_proj.weight"].T).view(len(x), -1, 8).transpose(0, 1)
        for name in "qkv"
    )
    q, k, v = turned(q), turned(k).repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(
        torch.ones(len(x), len(x)).triu(1).bool(), float("-inf")
    )
    out = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1)
    return out @ t[f"{prefix}self_attn.o_proj.weight"].T


def with_mlp(x: Tensor, t: dict[str, Tensor], prefix: str) -> Tensor:
    normed = rms(x, t[f"{prefix}post_attention_layernorm.weight"])
    gate, up = (normed @ t[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (torch.nn.functional.silu(gate) * up) @ t[f"{prefix}mlp.down_proj.weight"].T


@pytest.mark.parametrize("version", [1, 3])
@torch.inference_mode()
def test_the_network_computes_what_the_papers_say(version: int, tmp_path: Path) -> None:
    """Written out from the published tensors and the states of a stock model."""
    model, stock = staged("llama"), stock_model("llama")
    tensors = tensors_of(random_network(model, version))
    draw = torch.Generator().manual_seed(2)
    tensors |= {
        name: 1 + 0.3 * torch.randn(t.shape, generator=draw)
        for name, t in tensors.items()
        if "norm" in name
    }
    decoder = Eagle(addon=written(tmp_path, model, tensors)).prepare(setup(model))
    text = PROMPTS[0]
    hidden = stock(torch.tensor([text]), output_hidden_states=True).hidden_states
    words = stock.model.embed_tokens.weight[text[1:]]
    if version == 1:
        # The last of these states has the final norm behind it already.
        x = torch.cat([words, hidden[-1][0, :-1]], dim=-1) @ tensors["fc.weight"].T
        x = with_mlp(x + attended(x, tensors, "layers.0."), tensors, "layers.0.")
        logits = stock.lm_head(x)
    else:
        assert feature_layers(4) == (1, 2, 4)
        taken: dict[int, Tensor] = {}
        hook = stock.model.layers[3].register_forward_hook(
            lambda module, given, out: taken.update({4: out})
        )
        stock(torch.tensor([text]))
        hook.remove()
        three = [hidden[1][0, :-1], hidden[2][0, :-1], taken[4][0, :-1]]
        x = torch.cat(three, dim=-1) @ tensors["fc.weight"].T
        entering = torch.cat(
            [
                rms(words, tensors["midlayer.input_layernorm.weight"]),
                rms(x, tensors["midlayer.hidden_norm.weight"]),
            ],
            dim=-1,
        )
        x = with_mlp(x + attended(entering, tensors, "midlayer."), tensors, "midlayer.")
        logits = rms(x, tensors["norm.weight"]) @ tensors["lm_head.weight"].T
    network = decoder.network
    states = DraftRows(network, CAPACITY, 0).read(
        torch.tensor([text[1:]]), true_features(network, model, text)
    )
    assert_near(states[0], x)
    assert_near(network.logits(states)[0], logits)


@pytest.mark.parametrize(
    ("n_layers", "expected"),
    [(32, (2, 16, 29)), (8, (2, 4, 5)), (7, (2, 3, 4)), (6, (2, 4, 6)), (3, (1, 2, 3))],
)
def test_features_come_from_the_published_layers(n_layers: int, expected: tuple[int, ...]) -> None:
    assert feature_layers(n_layers) == expected
    assert all(1 <= layer <= 2 for layer in feature_layers(2))
    assert feature_layers(1) == (1, 1, 1)


def test_a_head_that_reads_something_narrower_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = staged("opt-350m-like")
    addon = published(tmp_path, staged("llama"), 1)
    with pytest.raises(UnsupportedModel, match="head reads 16 numbers of hidden states of 32"):
        Eagle(addon=addon).prepare(setup(model))
