"""Medusa's heads: what they compute, how they are saved and published, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, silu

from ppdbench.decoding.decoder import Setup
from ppdbench.engine.addons import save_addon
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods.medusa.network import load_medusa
from ppdbench.methods.medusa.plan import MedusaPlan
from ppdbench.methods.medusa.strategy import Medusa
from ppdbench.methods.medusa.train import MedusaObjective
from tests.decoding.matrix import CAPACITY
from tests.families import stock_model
from tests.helpers import staged, tokens
from tests.methods.medusa.made import published, setup, written


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma2", "opt-350m-like"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_stacked_heads_compute_what_each_head_does_alone(
    family: str, layers: int, tmp_path: Path
) -> None:
    model = staged(family)
    width = model.adapter.head_width
    tensors = published(width, layers=layers)
    heads = load_medusa(written(tmp_path, tensors), setup(model).target).heads
    hidden = torch.randn(5, model.hidden_size)
    normed = model.adapter.norm(hidden)
    for h, ours in enumerate(heads.logits(hidden)):
        x = normed
        for b in range(layers):
            weight, bias = (tensors[f"{h}.{b}.linear.{part}"] for part in ("weight", "bias"))
            x = x + silu(linear(x, weight, bias))
        truth = model.adapter.cap(linear(x, tensors[f"{h}.{layers}.weight"]))
        torch.testing.assert_close(ours, truth, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("rank", [None, 0, 3])
def test_heads_guess_after_loading_what_they_guessed_in_training(
    rank: int | None, tmp_path: Path
) -> None:
    stock, words = stock_model("llama"), tokenizer(300, 96)
    objective = MedusaObjective(stock, MedusaPlan(heads=2, layers=2, rank=rank), 20)
    for parameter in objective.parameters():
        parameter.normal_(0, 0.2)
    objective.save(tmp_path, words, None)
    text = torch.tensor([tokens(20, 3)])
    truth = [logits for logits, _ in objective._guesses(text)]
    loaded = take_over(ModelSpec(name="tiny"), stock, words)
    decoder = Medusa(addon=str(tmp_path)).prepare(Setup(loaded, CAPACITY))
    session = Session(loaded.staged, CAPACITY)
    found = decoder.guesses(session, text[0].tolist(), range(18))
    for head in range(2):
        theirs = truth[head][0, :18]
        torch.testing.assert_close(found[:, head], theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "my.bin"])
def test_published_files_are_read_by_name_or_by_folder(name: str, tmp_path: Path) -> None:
    """Configurations beside them say two heads where there are five."""
    tensors = published(32, heads=5)
    if name.endswith("safetensors"):
        save_file(tensors, tmp_path / name)
    else:
        torch.save(tensors, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    target = setup(staged("llama")).target
    assert load_medusa(str(tmp_path / name), target).heads.count == 5
    if name != "my.bin":
        assert load_medusa(str(tmp_path), target).heads.count == 5


BAD_TENSORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "a missing bias": (
        {k: v for k, v in published(32).items() if k != "1.0.linear.bias"},
        r"lacks the tensor 1\.0\.linear\.bias",
    ),
    "a missing head": (
        {k: v for k, v in published(32).items() if not k.startswith("1.")},
        r"lacks the tensor 1\.0\.linear\.weight",
    ),
    "one block more": (
        {**published(32), "0.1.linear.bias": torch.zeros(32)},
        r"unexpected tensors: 0\.1\.linear\.bias",
    ),
    "another vocabulary": (
        {**published(32), "2.1.weight": torch.zeros(90, 32)},
        r"2\.1\.weight has shape \[90, 32\], not \[96, 32\]",
    ),
    "another width": (
        published(16),
        r"0\.0\.linear\.weight has shape \[16, 16\], not \[32, 32\]",
    ),
    "something else": ({"lm_head": torch.zeros(3)}, "holds no Medusa heads"),
}


@pytest.mark.parametrize("what", sorted(BAD_TENSORS))
def test_wrong_tensors_are_named(what: str, tmp_path: Path) -> None:
    tensors, message = BAD_TENSORS[what]
    with pytest.raises(ConfigError, match=message):
        load_medusa(written(tmp_path, tensors), setup(staged("llama")).target)


class Harmful:
    def __reduce__(self) -> Any:
        return (os.system, ("true",))


def test_a_published_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    torch.save({**published(32), "more": Harmful()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ConfigError, match=r"medusa_lm_head\.pt is refused"):
        load_medusa(str(tmp_path), setup(staged("llama")).target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0, "layers": 1}, r"addon\.json: heads is 0; use 1 or more"),
        ({"heads": 1, "layers": "1"}, r"addon\.json: layers is '1'; use 0 or more"),
        ({"heads": 1, "layers": 1, "rank": -1}, r"addon\.json: rank is -1; use 0 or more"),
        ({"heads": 2, "layers": 1}, r"lacks the tensor 1\.0\.linear\.weight"),
        ({"heads": 1, "layers": 1, "rank": 2}, r"lacks the tensor 0\.1\.down"),
    ],
)
def test_an_addon_whose_options_do_not_fit_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    stock, words = stock_model("llama"), tokenizer(300, 96)
    save_addon(tmp_path, "medusa", stock, words, published(32, heads=1), options)
    loaded = take_over(ModelSpec(name="tiny"), stock, words)
    with pytest.raises(ConfigError, match=message):
        load_medusa(str(tmp_path), loaded)
