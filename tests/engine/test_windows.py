"""Windows are those of the masks that a model's own code makes, whatever its config names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.windows import windows_of
from tests.families import WINDOW, stock_model
from tests.helpers import tokens

PROMPT = tokens(3 * WINDOW)
FULL = ["full_attention"] * 4

# What a config names beside the family, and whether its code makes masks of a window of it.
NAMED: dict[str, tuple[str, dict[str, Any], bool]] = {
    "llama ignores a window": ("llama", {"sliding_window": WINDOW}, False),
    "llama ignores kinds of layers, too": (
        "llama",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 4},
        False,
    ),
    "gpt_neox ignores a window": ("gpt_neox", {"sliding_window": WINDOW}, False),
    "olmo2 ignores a window": ("olmo2", {"sliding_window": WINDOW}, False),
    "mistral asks nobody whether to": ("mistral-window", {"use_sliding_window": False}, True),
    "phi3 asks nobody whether to": ("phi3-window", {"use_sliding_window": False}, True),
    "phi3 has one kind of layers": ("phi3-window", {"layer_types": FULL}, True),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_window_is_there_where_the_models_code_makes_it(name: str) -> None:
    family, named, windowed = NAMED[name]
    model = stock_model(family, **named)
    assert model.config.sliding_window == WINDOW
    assert set(Adapter(model).windows) == {WINDOW if windowed else None}


@pytest.mark.parametrize("name", NAMED)
@torch.inference_mode()
def test_passes_see_what_whole_passes_of_the_stock_model_see(name: str) -> None:
    family, named, _ = NAMED[name]
    stock, ours = stock_model(family, **named), StagedModel(stock_model(family, **named))
    session, text = Session(ours, 64), list(PROMPT)
    session.reset(text)
    token = session.prefill().argmax(-1)
    for _ in range(12):
        logits = stock(torch.tensor([text]), use_cache=False).logits[0, -1]
        assert int(token) == int(logits.argmax())
        text.append(int(token))
        token = session.advance(token).argmax(-1)


def test_kinds_of_layers_have_their_own_windows() -> None:
    assert Adapter(stock_model("qwen2-window")).windows == (None, None, WINDOW, WINDOW)
    assert Adapter(stock_model("gemma2")).windows == (WINDOW, None, WINDOW, None)


@torch.inference_mode()
def test_a_model_is_left_as_it_was() -> None:
    model = stock_model("gemma2")
    attention = model.config._attn_implementation
    before = model(torch.tensor([PROMPT])).logits
    Adapter(model)
    assert model.config.sliding_window == WINDOW
    assert model.config._attn_implementation == attention
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    assert torch.equal(model(torch.tensor([PROMPT])).logits, before)


def test_where_a_body_cannot_be_asked_its_config_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = stock_model("mistral-window")

    def fails(*_: Any, **__: Any) -> None:
        raise TypeError("what layers give is taken apart")

    monkeypatch.setattr(type(model.model), "forward", fails)
    assert windows_of(model.model, model.model.layers) is None
    assert Adapter(model).windows == (WINDOW,) * 4
    assert model.config.sliding_window == WINDOW
    assert not any("forward" in vars(layer) for layer in model.model.layers)
