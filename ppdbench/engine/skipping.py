"""A model without some of its attention and MLP blocks, over the very same weights.

A skipped block adds nothing to the residual stream. The layers it belongs to are replaced by
shallow copies in which a module that returns zeros stands in its place; the model itself
stays as it is. Layers of which nothing is left are not called.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import adds_itself
from ppdbench.engine.cache import KVCache
from ppdbench.engine.families import BlockNames
from ppdbench.engine.joined import JoinedCache
from ppdbench.engine.masks import Step
from ppdbench.engine.packing import packed_bytes
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import Tap
from ppdbench.errors import UnsupportedModel


class NoAttention(nn.Module):
    """An attention block that adds nothing, leaves the cache alone and gives so many values."""

    def __init__(self, values: int = 2) -> None:
        super().__init__()
        self.values = values

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> tuple[Tensor | None, ...]:
        """Zeros, and nothing for attention weights and what else the block gives."""
        return torch.zeros_like(hidden_states), *[None] * (self.values - 1)


def _values_of(block: nn.Module) -> int | None:
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

    def forward(self, hidden: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Zeros, and no word of a router."""
        return super().forward(hidden), None


def _gives_two(block: nn.Module, norm: nn.Module | None) -> bool:
    """True if experts give their router's word beside their output, as one normed token shows."""
    scale = getattr(norm, "weight", None)
    if "experts" not in dict(block.named_children()) or scale is None or scale.is_meta:
        return False
    with torch.inference_mode():
        return isinstance(block(torch.zeros_like(scale)[None, None]), tuple)


def _check_parts(blocks: BlockNames, layers: Iterable[nn.Module]) -> None:
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
    return [name for name in (blocks.attention, *blocks.mixers) if name in there]


def attention_bytes(blocks: BlockNames, layer: nn.Module) -> int:
    """Memory of the weights of a layer's attention block, or of the mixer in its place."""
    return sum(weight_bytes(layer.get_submodule(name)) for name in _looking_back(blocks, layer))


def mlp_bytes(blocks: BlockNames, layer: nn.Module) -> int:
    """Memory of the weights of a layer's MLP block."""
    return sum(weight_bytes(layer.get_submodule(name)) for name in blocks.mlp)


def without(
    blocks: BlockNames, layer: nn.Module, *, attention: bool, mlp: bool, looked_at: bool = False
) -> nn.Module:
    """A copy of `layer` that shares its modules but lacks one block or both.

    Where other layers look at its keys and values, these are made all the same.
    """
    twin = copy.copy(layer)
    replaced: dict[str, nn.Module] = {}
    if attention:
        replaced |= dict.fromkeys(blocks.attention_norms, nn.Identity())
        for name in _looking_back(blocks, layer):
            block = layer.get_submodule(name)
            values = _values_of(block)
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
    vars(twin)["_modules"] = {**layer._modules, **replaced}
    # Hooks that were put on the layer as a `forward` of its own would call the original.
    vars(twin).pop("forward", None)
    return twin


def weight_bytes(module: nn.Module) -> int:
    """Memory of the weights of `module`."""
    plain: int = sum(p.numel() * p.element_size() for p in module.parameters())
    return plain + packed_bytes(module)


class SkippedModel(StagedModel):
    """`model` without the attention of some layers and the MLP of some.

    Its passes write the cache rows of the layers whose attention runs; those of the others
    keep their length, so `Session.cached` stays where the whole model was last run.
    """

    def __init__(
        self, model: StagedModel, attention: Collection[int], mlp: Collection[int]
    ) -> None:
        beyond = sorted({*attention, *mlp} - set(range(model.n_layers)))
        if beyond:
            raise ValueError(f"layer {beyond[0]}: use 0..{model.n_layers - 1}")
        vars(self).update(vars(model))
        self.whole = model
        self.attention, self.mlp = frozenset(attention), frozenset(mlp)
        layers = model.adapter.layers
        blocks = model.adapter.blocks
        _check_parts(blocks, layers)
        looked_at = model.cache_shape.looked_at
        self._not_attending = self.attention - looked_at
        self._nothing_left = self._not_attending & self.mlp if blocks.apart else frozenset()
        self.compiled = model.compiled.without(self.attention | self.mlp)
        self.flat = None if model.flat is None else model.flat.without(self.attention, self.mlp)
        self.adapter = model.adapter.with_layers(
            {
                i: without(
                    blocks,
                    layers[i],
                    attention=i in self.attention,
                    mlp=i in self.mlp,
                    looked_at=i in looked_at,
                )
                for i in (self.attention | self.mlp) - self._nothing_left
            }
        )
        self.graphs = model.graphs.of(self.adapter)

    def over(self, session: Session) -> Session:
        """A session of this model on the cache and the tokens of one of the whole model."""
        view = copy.copy(session)
        view.model = self
        return view

    def pass_over(
        self,
        hidden: Tensor,
        start: int,
        stop: int,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None = None,
    ) -> Tensor:
        """Run what is left of the layers [start, stop) over `hidden` [batch, query, hidden]."""
        for layers, attends in self._stretches(start, stop):
            if attends:
                hidden = super().pass_over(hidden, layers[0], layers[-1] + 1, step, cache, tap)
            else:
                hidden = self._run_without_attention(hidden, layers, step, cache, tap)
        return hidden

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[list[int], bool]]:
        """Layers in a row that all have their attention, or all lack it."""
        for attends, layers in groupby(range(start, stop), lambda i: i not in self._not_attending):
            yield list(layers), attends

    def _run_without_attention(
        self,
        hidden: Tensor,
        layers: list[int],
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None,
    ) -> Tensor:
        if self.flat is not None:
            whole = range(layers[0], layers[-1] + 1)
            found = self.flat.layers.run(hidden, whole, step, cache, tap)
            if found is not None:
                return found
        for i in layers:
            if i not in self._nothing_left:
                hidden = hidden.to(self.cache_shape.devices[i])
                there = step.on(hidden.device)
                hidden = self.adapter.call_layer(i, hidden, None, None, None, there)
            if tap is not None:
                tap(i + 1, hidden.to(self.device))
        return hidden.to(self.device)

    def layer_bytes(self, layer: int) -> int:
        """Count the bytes left of one layer's weights."""
        return 0 if layer in self._nothing_left else super().layer_bytes(layer)

    def cost(self) -> float:
        """Return the part of the model's weights that a pass of one row reads, 0..1.

        Embeddings are looked up, not read, and norms are too small to count.
        """
        layers: list[Any] = self.whole.adapter.layers
        attention = [attention_bytes(self.adapter.blocks, layer) for layer in layers]
        mlp = [mlp_bytes(self.adapter.blocks, layer) for layer in layers]
        whole = sum(attention) + sum(mlp) + weight_bytes(self.adapter.head)
        saved = sum(attention[i] for i in self._not_attending) + sum(mlp[i] for i in self.mlp)
        return (whole - saved) / whole
