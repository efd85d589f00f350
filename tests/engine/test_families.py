"""Every family, driven layer by layer, is the model that transformers runs."""

from __future__ import annotations

import copy

import pytest
import torch

from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from tests.families import FAMILIES, WINDOW, greedy_truth, stock_model

PROMPT = [5, 17, 33, 8, 61, 90, 12, 44, 70, 23, 9]


def staged(name: str, packed: bool = True) -> tuple[object, StagedModel]:
    stock = stock_model(name)
    return stock, StagedModel(copy.deepcopy(stock), packed=packed)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@torch.inference_mode()
def test_hidden_states_after_each_layer_equal_transformers(name: str, packed: bool) -> None:
    stock, model = staged(name, packed)
    ids = torch.tensor([PROMPT * 3])
    session = Session(model, 64)
    session.reset(ids[0].tolist())
    each: list[torch.Tensor] = []
    logits = session.prefill(tap=lambda _layer, hidden: each.append(hidden))

    before_norm: list[torch.Tensor] = []
    last = list(stock.get_submodule(model.adapter.family.body).modules())  # type: ignore[attr-defined]
    layer = getattr(last[0], model.adapter.family.layers)[-1]
    handle = layer.register_forward_hook(lambda _m, _i, out: before_norm.append(out))
    truth = stock(ids, output_hidden_states=True)  # type: ignore[operator]
    handle.remove()

    theirs = [*truth.hidden_states[1 : model.n_layers], before_norm[0]]
    for ours, expected in zip(each, theirs, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, truth.logits[:, -1:], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_greedy_tokens_equal_generate(name: str) -> None:
    stock, model = staged(name)
    session = Session(model, 64)
    stock.generation_config.eos_token_id = None  # type: ignore[attr-defined]
    for prompt in (PROMPT, PROMPT[:1], PROMPT * 2):
        session.reset(prompt)
        token = session.prefill().argmax(-1)
        ours = [int(token)]
        while len(ours) < 40:
            token = session.advance(token).argmax(-1)
            ours.append(int(token))
        assert ours == greedy_truth(stock, prompt, 40)


@pytest.mark.parametrize("name", [n for n in FAMILIES if "window" in n or "gemma" in n])
@torch.inference_mode()
def test_the_window_matters_in_these_models(name: str) -> None:
    """Otherwise the tests above would pass with the window ignored."""
    ids = torch.tensor([PROMPT * 3])
    assert ids.shape[1] > WINDOW
    stock = stock_model(name)
    config = stock.config
    wide = stock_model(name, sliding_window=config.max_position_embeddings)
    assert not torch.allclose(stock(ids).logits, wide(ids).logits, atol=1e-3)


def test_a_family_whose_state_cannot_be_taken_back_is_refused_with_the_reason() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "rwkv", vocab_size=32, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16
    )
    with pytest.raises(UnsupportedModel, match=r"rwkv does not run, because layers with a memory"):
        StagedModel(AutoModelForCausalLM.from_config(config))


def test_sequences_beyond_the_models_positions_are_refused() -> None:
    model = StagedModel(stock_model("llama"))
    with pytest.raises(UnsupportedModel, match=r"97 tokens.*96 at most"):
        model.new_cache(97)


def test_length_dependent_rope_is_refused_past_its_original_length() -> None:
    half = COSINES // 2
    model = StagedModel(
        stock_model(
            "phi3",
            original_max_position_embeddings=32,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 32,
                "short_factor": [1.0] * half,
                "long_factor": [2.0] * half,
                "factor": 3.0,
            },
        )
    )
    model.new_cache(32)
    with pytest.raises(UnsupportedModel, match=r"33 tokens.*32 at most"):
        model.new_cache(33)


COSINES = 8  # head_dim of the tiny models
