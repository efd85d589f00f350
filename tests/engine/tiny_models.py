"""Tiny models of families whose layers are more than attention and an MLP; tests share them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.staged import StagedModel


@cache
def stock(family: str) -> Any:
    """The stock model; whoever changes it takes a copy."""
    return tiny(family)


@cache
def staged(family: str) -> StagedModel:
    """The engine's view of the same weights."""
    return StagedModel(copy.deepcopy(stock(family)))


def whole_pass(model: Any, text: list[int], n: int) -> Tensor:
    """The stock model's logits of the last `n` tokens of a text."""
    logits: Tensor = model(torch.tensor([text]), use_cache=False).logits
    return logits[:, -n:]
