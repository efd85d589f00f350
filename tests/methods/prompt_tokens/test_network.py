"""Prompt tokens: what they guess at any place, and the files that they come from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ppdbench.decoding.decoder import Guesser, Setup
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import Session
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods.prompt_tokens.network import Chain, Prompts, load_prompts
from ppdbench.methods.prompt_tokens.strategy import PromptTokens, PromptTokensProposer
from tests.decoding.matrix import CAPACITY, assert_exact
from tests.families import FAMILIES, stock_model
from tests.helpers import assert_near, staged, tokens
from tests.methods.prompt_tokens.made import (
    STATIC,
    UNEVEN,
    VARIANTS,
    adapter,
    as_loaded,
    prompted,
    some_cases,
    staged_with,
)

# Guesses at any place


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_distance_1_is_the_token_after_the_models_own_next_one(name: str) -> None:
    """Prompt tokens that are the words that follow guess what the model itself says there."""
    model, text = staged(name), tokens(20, 4)
    session = Session(model, CAPACITY, spare=4)
    hidden = session.forward(session.ids(text))
    own = model.logits(hidden)[0]
    for place in (0, 7, 16):
        following = torch.tensor([text[place + 1 : place + 4]])
        words = model.adapter.words(following)[0]
        decoder = PromptTokensProposer(Prompts(Chain(3), words), STATIC, model, {})
        assert isinstance(decoder, Guesser)
        guesses = decoder.guesses(session, text, [place])
        assert_near(guesses[0], own[place + 1 : place + 4])


def test_guesses_at_many_places_are_those_at_each() -> None:
    model = staged("mistral-window")
    decoder = prompted(model, UNEVEN, **VARIANTS["prefix"])
    text = tokens(CAPACITY, 5)  # as long as the cache allows
    session = Session(model, CAPACITY, spare=decoder.rows)
    places = list(range(3, CAPACITY))
    together = decoder.guesses(session, text, places)
    assert together.shape == (CAPACITY - 3, 3, model.vocab_size)
    for row, place in enumerate(places):
        assert_near(together[row : row + 1], decoder.guesses(session, text, [place]))
    earlier = decoder.guesses(session, text[:30], [20])
    assert_near(together[17:18], earlier)


# Add-ons and adapters


def test_an_addon_for_another_model_is_refused(trained: tuple[Loaded, Path]) -> None:
    _, folder = trained
    other = staged_with(stock_model("gpt2", seed=1, vocab_size=300), tokenizer(300, 96))
    with pytest.raises(ConfigError, match="trained for another model"):
        load_prompts(folder, other)


def test_without_an_addon_the_command_that_makes_one_is_named(
    trained: tuple[Loaded, Path],
) -> None:
    with pytest.raises(ConfigError, match="ppdbench train prompt-tokens"):
        PromptTokens().prepare(Setup(trained[0], CAPACITY))


def test_options_of_an_addon_that_cannot_be_are_told_with_its_folder(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    loaded, folder = trained
    header = json.loads((folder / "addon.json").read_text("utf-8"))
    for name, value, message in (
        ("exits", 9, "exits=9; use 1..4"),
        ("mask", "all", "mask='all' is not known"),
        ("prompts", "3", "prompts must be a whole number"),
        ("prompts", 2, r"embeddings has shape \[3, 32\], not \[2, 32\]"),
        ("aggregation", "learned", "lacks the tensor weights"),
        ("aggregation", "means", "unknown aggregation 'means': did you mean mean"),
        ("prefix", 1, "lacks the tensor prefix.keys"),
    ):
        changed = {**header, "options": {**header["options"], name: value}}
        (tmp_path / "addon.json").write_text(json.dumps(changed), "utf-8")
        (tmp_path / "addon.safetensors").write_bytes((folder / "addon.safetensors").read_bytes())
        with pytest.raises(ConfigError, match=message) as told:
            load_prompts(tmp_path, loaded)
        assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_published_adapters_decode_and_stay_as_they_are(kind: str, tmp_path: Path) -> None:
    folder, model = adapter(tmp_path / "published", kind), staged("llama")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path is folder else 0o444)
    decoder = PromptTokens(addon=str(folder)).prepare(Setup(as_loaded(model), CAPACITY))
    assert decoder.prompts.chain == Chain(3, 2)
    expected = torch.randn(6, 32, generator=torch.Generator().manual_seed(5))
    assert torch.equal(decoder.prompts.embeddings, expected)
    for case in some_cases(model):
        assert_exact(decoder, case, model)
    folder.chmod(0o755)
    after = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    assert after == before


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("hacked",)


def test_bad_adapters_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = as_loaded(staged("llama"))

    def refused(folder: Path, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as told:
            load_prompts(folder, loaded)
        assert "\n" not in str(told.value)

    refused(adapter(tmp_path / "a", peft_type="LORA"), "describes no prompt tuning")
    refused(adapter(tmp_path / "b", num_special_tokens=None), "num_special_tokens is missing")
    refused(adapter(tmp_path / "c", num_special_tokens=0), "prompts=0; use 1 or more")
    refused(adapter(tmp_path / "d", num_special_tokens=4), r"shape \[6, 32\], not \[8, 32\]")
    refused(adapter(tmp_path / "e", "none"), "holds no weights; expected adapter_model")
    (adapter(tmp_path / "f") / "adapter_config.json").write_text("{", "utf-8")
    refused(tmp_path / "f", "not JSON that can be used")
    evil = adapter(tmp_path / "g", "none")
    torch.save({"prompt_embeddings": Evil()}, evil / "adapter_model.bin")
    refused(evil, "holds more than plain tensors")
    assert not (tmp_path / "hacked").exists()
    more = {"prompt_embeddings": torch.zeros(6, 32), "prompt_encoder.weight": torch.zeros(2)}
    save_file(more, adapter(tmp_path / "h") / "adapter_model.safetensors")
    refused(tmp_path / "h", "unexpected tensors: prompt_encoder.weight")
