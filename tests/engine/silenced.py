"""The stock model with blocks silenced: what a model without them is held against."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ppdbench.engine.staged import StagedModel
from tests.families import stock_model
from tests.helpers import tokens

PROMPT = tokens(13, 2)


def zeroed(_module: object, _inputs: object, output: Any) -> Any:
    if isinstance(output, tuple):
        return (torch.zeros_like(output[0]), *output[1:])
    return torch.zeros_like(output)


def pair(name: str, packed: bool = True) -> tuple[Any, StagedModel]:
    stock = stock_model(name)
    return stock, StagedModel(copy.deepcopy(stock), packed=packed)


# What is added to the residual stream, by family: the modules whose outputs are zeroed.
ADDED = {
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gemma3_text": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gpt2": ("attn", "mlp"),
    "gpt_neox": ("attention", "mlp"),
    "opt": ("self_attn", "fc2"),
}


@contextmanager
def silenced(stock: Any, attention: set[int], mlp: set[int]) -> Iterator[None]:
    """The stock model with blocks that add nothing to the residual stream."""
    names = ADDED.get(stock.config.model_type, ("self_attn", "mlp"))
    kind = stock.config.model_type
    path = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers", "opt": "model.decoder.layers"}
    layers = stock.get_submodule(path.get(kind, "model.layers"))
    hooks = [
        layers[i].get_submodule(name).register_forward_hook(zeroed)
        for name, skipped in zip(names, (attention, mlp), strict=True)
        for i in skipped
    ]
    yield
    for hook in hooks:
        hook.remove()
