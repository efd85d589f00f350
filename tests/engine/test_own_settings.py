"""Settings for generate() that change greedy decoding are named when a model is loaded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.own_settings import NEUTRAL, that_change_greedy
from ppdbench.errors import PpdbenchWarning
from tests.families import stock_model
from tests.helpers import save_synthetic, tokens

# Of each setting a value with which transformers gives other tokens, or might.
TELLING: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "encoder_repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "min_length": 40,
    "min_new_tokens": 40,
    "num_beams": 3,
    "guidance_scale": 2.0,
    "bad_words_ids": [[7]],
    "suppress_tokens": [7],
    "begin_suppress_tokens": [7],
    "sequence_bias": [[[7], 9.0]],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 7,
    "exponential_decay_length_penalty": (3, 1.5),
}


def test_every_setting_is_named_with_its_value() -> None:
    assert TELLING.keys() == NEUTRAL.keys()
    for name, value in TELLING.items():
        (said,) = that_change_greedy(GenerationConfig(**{name: value}))
        assert said.startswith(f"{name}=")
    assert that_change_greedy(GenerationConfig(repetition_penalty=1.3)) == [
        "repetition_penalty=1.3"
    ]


def test_settings_that_change_nothing_are_not_named() -> None:
    for name, value in NEUTRAL.items():
        assert that_change_greedy(GenerationConfig(**{name: value})) == []
    sampled = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.9, eos_token_id=[2, 3])
    assert that_change_greedy(sampled) == []


@pytest.mark.parametrize("name", ["repetition_penalty", "suppress_tokens", "min_new_tokens"])
def test_generate_gives_other_tokens_with_what_is_named(name: str) -> None:
    model, ids = stock_model("llama"), torch.tensor([tokens(9)])

    def generated(**options: Any) -> list[int]:
        out: torch.Tensor = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=40,
            pad_token_id=0,
            **options,
        )
        return out[0, ids.shape[1] :].tolist()

    plain = generated()
    ends = {"eos_token_id": plain[3]} if name == "min_new_tokens" else {}
    value = [plain[0]] if name == "suppress_tokens" else TELLING[name]
    assert that_change_greedy(GenerationConfig(**{name: value}))
    assert generated(**ends, **{name: value}) != generated(**ends)


def test_loading_says_what_a_model_brings(tmp_path: Path) -> None:
    folder = save_synthetic(tmp_path / "model", "layers=2,hidden=32,heads=2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PpdbenchWarning)
        load(ModelSpec(name=str(folder), dtype="float32", device="cpu"))
    GenerationConfig(repetition_penalty=1.1, eos_token_id=2).save_pretrained(folder)
    with pytest.warns(PpdbenchWarning, match=r"brings repetition_penalty=1\.1 for generate"):
        load(ModelSpec(name=str(folder), dtype="float32", device="cpu"))
