"""Layers without some of their blocks, over the very same weights.

What adds nothing stands in the place of a block. It is in a shallow copy of its layer: the layer
itself stays as it is.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import adds_itself
from ppdbench.engine.families import BlockNames
from ppdbench.engine.packing import packed_bytes, taken
from ppdbench.errors import UnsupportedModel


class NoAttention(nn.Module):
    """An attention block that adds nothing, leaves the cache alone and gives so many values."""

    def __init__(self, values: int = 2) -> None:
        super().__init__()
        self.values = values

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> tuple[Tensor | None, ...]:
        """Zeros, and nothing for attention weights and what else the block gives."""
        return torch.zeros_like(hidden_states), *[None] * (self.values - 1)


def values_of(block: nn.Module) -> int | None:
    """The number of values that a block gives, as its source says; None where it says of none."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(type(block).forward)))
    given = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Return)]
    return max((len(value.elts) for value in given if isinstance(value, ast.Tuple)), default=None)


class RowsAlone(nn.Module):
    """An attention block that adds nothing, but makes the keys and values others look at."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor | None, ...]:
        """Zeros, and nothing for what else the block gives."""
        first, *others = self.block(*given, **named)
        return torch.zeros_like(first), *[None] * len(others)


class NoMixer(nn.Module):
    """A stand-in for a mixer: it adds nothing, and what it remembers stays as it was."""

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        """Zeros."""
        return torch.zeros_like(hidden_states)


class Through(nn.Module):
    """A stand-in for a mixer: it remembers nothing and gives what it is handed."""

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        """The same."""
        return hidden_states


class NoMLP(nn.Module):
    """An MLP block, or the last part of one, that adds nothing."""

    def forward(self, hidden: Tensor, *_: object) -> Tensor:
        """Zeros."""
        return torch.zeros_like(hidden)


class NoAddingAttention(nn.Module):
    """A stand-in for an attention block that adds its output to the stream itself."""

    def forward(
        self, hidden: Tensor, residual: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, None]:
        """The stream as it was, and no attention weights."""
        return residual, None


class NoAddingMLP(nn.Module):
    """A stand-in for an MLP block that adds its output to the stream itself."""

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """The stream as it was."""
        return residual


class NoExperts(NoMLP):
    """The same beside what the layer looks for behind its experts: the router's word."""

    def forward(self, hidden: Tensor, *_: object) -> tuple[Tensor, None]:  # type: ignore[override]
        """Zeros, and no word of a router."""
        return super().forward(hidden), None


def _gives_two(block: nn.Module, norm: nn.Module | None) -> bool:
    """True if experts give their router's word beside their output.

    One normed token shows it, or where no norm is known what their source says.
    """
    if norm is None:
        return values_of(block) == 2
    scale = getattr(norm, "weight", None)
    if "experts" not in dict(block.named_children()) or scale is None or scale.is_meta:
        return False
    # Norms may hold their weights in a wider type than what they give is of.
    row = torch.zeros_like(scale, dtype=taken(block))[None, None]
    with torch.inference_mode():
        return isinstance(block(row), tuple)


def check_blocks(blocks: BlockNames, layers: Iterable[nn.Module]) -> None:
    """Refuse layers without the blocks that their family has."""
    for layer in layers:
        there = dict(layer.named_children())
        if not _looking_back(blocks, layer) or not there.keys() >= {*blocks.mlp}:
            raise UnsupportedModel(
                f"layers of type {type(layer).__name__} cannot be run without single blocks"
            )


def _looking_back(blocks: BlockNames, layer: nn.Module) -> list[str]:
    """The names of a layer's parts that look at rows before their own."""
    there = dict(layer.named_children())
    return [name for name in dict.fromkeys((blocks.attention, *blocks.mixers)) if name in there]


def attention_bytes(blocks: BlockNames, layer: nn.Module) -> int:
    """Memory of the weights of a layer's attention block, or of the mixer in its place."""
    return sum(weight_bytes(layer.get_submodule(name)) for name in _looking_back(blocks, layer))


def _beside(blocks: BlockNames, layer: nn.Module) -> list[str]:
    """The names of the parts that a layer has beside its MLP."""
    there = dict(layer.named_children())
    return [name for name in blocks.beside if name in there]


def mlp_bytes(blocks: BlockNames, layer: nn.Module) -> int:
    """Memory of the weights of a layer's MLP block, and of what stands beside it."""
    names = (*blocks.mlp, *_beside(blocks, layer))
    return sum(weight_bytes(layer.get_submodule(name)) for name in names)


def exchanged(layer: nn.Module, path: str, block: nn.Module) -> nn.Module:
    """A copy of `layer` that shares its modules, but for the one in whose place `block` stands.

    And but for those that hold it.
    """
    name, _, rest = path.partition(".")
    part = exchanged(layer.get_submodule(name), rest, block) if rest else block
    return _with_modules(layer, {name: part})


def _with_modules(layer: nn.Module, replaced: dict[str, nn.Module]) -> nn.Module:
    twin = copy.copy(layer)
    vars(twin)["_modules"] = {**layer._modules, **replaced}
    # Hooks that were put on the layer as a `forward` of its own would call the original.
    vars(twin).pop("forward", None)
    return twin


def without(
    blocks: BlockNames, layer: nn.Module, *, attention: bool, mlp: bool, looked_at: bool = False
) -> nn.Module:
    """A copy of `layer` that shares its modules but lacks one block or both.

    Where other layers look at its keys and values, these are made all the same.
    """
    replaced: dict[str, nn.Module] = {}
    if attention:
        replaced |= dict.fromkeys(blocks.attention_norms, nn.Identity())
        for name in _looking_back(blocks, layer):
            block = layer.get_submodule(name)
            values = values_of(block)
            if looked_at:
                replaced[name] = RowsAlone(block)
            elif adds_itself(block):
                replaced[name] = NoAddingAttention()
            elif name in blocks.mixers and values is None:
                replaced[name] = NoMixer()
            else:
                replaced[name] = NoAttention(values or 2)
    if mlp:
        replaced |= dict.fromkeys((*blocks.mlp_norms, *blocks.mlp), nn.Identity())
        block = layer.get_submodule(blocks.mlp[-1])
        norm = layer.get_submodule(blocks.mlp_norms[0]) if blocks.mlp_norms else None
        if adds_itself(block):
            replaced[blocks.mlp[-1]] = NoAddingMLP()
        else:
            replaced[blocks.mlp[-1]] = NoExperts() if _gives_two(block, norm) else NoMLP()
        for name in _beside(blocks, layer):
            replaced[name] = NoMLP()
    return _with_modules(layer, replaced)


def weight_bytes(module: nn.Module) -> int:
    """Memory of the weights of `module`."""
    plain: int = sum(p.numel() * p.element_size() for p in module.parameters())
    return plain + packed_bytes(module)
