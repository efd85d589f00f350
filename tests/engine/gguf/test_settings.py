"""Settings of GGUF files: what becomes the configuration, and what no model of ours has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine.loading import ModelSpec, load
from tests import gguf_files
from tests.engine.gguf.made import loaded, logits, refused
from tests.families import stock_model
from tests.gguf_files import write

PATTERN = "sliding_window_pattern"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"split.count": 3}, "is one of 3 parts; join them first: llama-gguf-split --merge"),
        ({"general.type": "adapter"}, "holds no whole model but a part of one: 'adapter'"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 0}, "num_hidden_layers is 0; use a whole number from 1"),
        ({"embedding_length": 1 << 30}, "hidden_size is 1073741824; use a whole number"),
        ({"attention.head_count": [4, 2]}, "num_attention_heads is"),
        ({"attention.value_length": 4}, "keys and values of different widths"),
        ({"rope.dimension_count": 4}, "4 of 8 numbers of a head are rotated"),
        ({"rope.scaling.type": "yarn"}, "scaled by 'yarn' and by stored factors, or by nothing"),
        ({"logit_scale": 0.5}, "llama.logit_scale is 0.5, a setting that this version does not"),
        ({"expert_count": 8}, "llama.expert_count is 8, a setting"),
    ],
)
def test_a_model_that_would_be_another_is_refused(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama"), **changed)
    refused(ModelSpec(name=str(path)), words)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama"), **{"tokenizer.ggml.tokens": None})
    refused(ModelSpec(name=str(path)), "holds no tokenizer; fetch one that does", late=True)


def test_rotary_factors_in_the_file_slow_the_angles_down(tmp_path: Path) -> None:
    stock = stock_model("llama3-rope")
    again = loaded(write(tmp_path / "m.gguf", stock))
    assert torch.allclose(
        again.model.rotary_emb.inv_freq, stock.model.rotary_emb.inv_freq, rtol=1e-6
    )
    assert torch.allclose(logits(again), logits(stock), atol=1e-4)
    assert not torch.allclose(logits(stock_model("llama")), logits(stock), atol=1e-2)
    assert load(ModelSpec(name=str(tmp_path / "m.gguf"))).max_positions == 96


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_linear_scaling_is_that_of_the_configuration(name: str, tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    local = {"rope_type": "default", "rope_theta": 10000.0}
    both = {"full_attention": linear, "sliding_attention": local}
    stock = stock_model(name, rope_parameters=both if name == "gemma3" else linear)
    again = loaded(write(tmp_path / "m.gguf", stock))
    assert torch.allclose(logits(again), logits(stock), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "changed", "words"),
    [
        ("minimax_m2", {"expert_gating_func": 1}, "expert_gating_func is 1, a setting that this"),
        ("gemma4_text", {f"attention.{PATTERN}": None}, f"{PATTERN} is None, which tells nothing"),
        ("gemma4_text", {f"attention.{PATTERN}": [True]}, "which tells nothing of 4 layers"),
        ("gemma4_text", {"attention.head_count_kv": [1, 2]}, r"head_count_kv is \(1, 2\), which"),
        ("gemma4_text", {"attention.value_length": 4}, "16 numbers, values of 4, of which 16 are"),
        ("gemma4_text", {"rope.dimension_count_swa": 4}, "8 numbers, values of 8, of which 4 are"),
        ("gemma4_text", {"rope.scaling.type": "yarn"}, "scaled by 'yarn' and by stored factors"),
    ],
)
def test_other_layers_than_a_family_has_are_refused(
    tmp_path: Path, family: str, changed: dict[str, object], words: str
) -> None:
    path = write(tmp_path / "m.gguf", tiny(family), **changed)
    refused(ModelSpec(name=str(path)), words)


def test_angles_that_are_slowed_down_by_other_factors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_files, "_turned_or_not", lambda _: torch.tensor([1.0, 2.0] * 4))
    path = write(tmp_path / "m.gguf", tiny("gemma4_text"))
    refused(ModelSpec(name=str(path)), "angles of heads slowed down by factors of their own")
