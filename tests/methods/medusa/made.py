"""Heads of Medusa, made and published as tests need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.staged import StagedModel
from ppdbench.methods.medusa.strategy import Medusa, MedusaProposer
from tests.decoding.matrix import CAPACITY
from tests.helpers import VOCAB

HEADS = 3


def setup(model: StagedModel) -> Setup:
    return Setup(Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, ""), CAPACITY)


def published(
    width: int, heads: int = HEADS, layers: int = 1, vocab: int = VOCAB
) -> dict[str, Tensor]:
    """Tensors of heads under the published names, large enough to have opinions."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=draw)

    found = {}
    for h in range(heads):
        for b in range(layers):
            found[f"{h}.{b}.linear.weight"] = some(width, width)
            found[f"{h}.{b}.linear.bias"] = some(width)
        found[f"{h}.{layers}.weight"] = some(vocab, width)
    return found


def written(folder: Path, tensors: dict[str, Tensor]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return str(folder)


def random_heads(model: StagedModel, folder: Path, **options: Any) -> MedusaProposer:
    addon = written(folder, published(model.adapter.head_width))
    return Medusa(addon=addon, **options).prepare(setup(model))
