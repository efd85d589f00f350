"""Weights, however they are held: plain numbers, or what a library keeps in their place.

bitsandbytes hangs what 4-bit numbers stand for on the parameter, as `quant_state`; torchao's
parameters are tensors made of tensors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_made_of_others(thing: Any) -> bool:
    """True if a tensor has no memory of its own but holds others."""
    return bool(is_traceable_wrapper_subclass(thing))


def parts(tensor: Any) -> list[Tensor]:
    """The plain tensors behind a weight, itself where it is one."""
    if is_made_of_others(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in parts(getattr(tensor, name))]
    state = getattr(tensor, "quant_state", None)
    if state is None:
        return [tensor]
    return [tensor, state.absmax, *([state.state2.absmax] if state.nested else [])]


def is_plain(tensor: Tensor) -> bool:
    """True if a weight is just its numbers."""
    return not is_made_of_others(tensor) and not hasattr(tensor, "quant_state")


def count(tensor: Tensor) -> int:
    """Count the weights that a tensor stands for."""
    state = getattr(tensor, "quant_state", None)
    return tensor.numel() if state is None else int(state.shape.numel())


def kind_of(model: nn.Module) -> str | None:
    """Name the way weights are held where they are not plain, as `--quantize` calls it."""
    for parameter in model.parameters():
        if (state := getattr(parameter, "quant_state", None)) is not None:
            return str(state.quant_type)
        if is_made_of_others(parameter):
            return type(parameter).__name__.removesuffix("Tensor").lower()
    return None
