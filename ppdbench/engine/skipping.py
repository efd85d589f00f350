"""A model without some of its attention and MLP blocks, over the very same weights.

A skipped block adds nothing to the residual stream. The layers it belongs to are replaced by
shallow copies in which a module that returns zeros stands in its place; the model itself
stays as it is. Layers of which nothing is left are not called.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import Step
from ppdbench.engine.packing import packed_bytes
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel, Tap
from ppdbench.errors import UnsupportedModel

ATTENTION = ("self_attn", "attention", "attn")
# Norms that serve one block alone when none stands behind the blocks.
BEFORE_ATTENTION = {"input_layernorm", "ln_1", "self_attn_layer_norm"}
BEFORE_MLP = {"post_attention_layernorm", "ln_2", "final_layer_norm"}


class NoAttention(nn.Module):
    """An attention block that adds nothing and leaves the cache alone."""

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        """Zeros and no attention weights."""
        return torch.zeros_like(hidden_states), None


class NoMLP(nn.Module):
    """An MLP block, or the last part of one, that adds nothing."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(hidden)


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names of a decoder layer's parts.

    The norms are those that matter to one block only: nobody reads them before a skipped
    block, and zeros stay zeros behind one. `bare` says that nothing is left of a layer
    without its blocks, which is not so where the residual stream itself is normed.
    """

    attention: str
    mlp: tuple[str, ...]
    attention_norms: tuple[str, ...]
    mlp_norms: tuple[str, ...]
    bare: bool

    @classmethod
    def of(cls, layer: nn.Module) -> BlockNames:
        """The parts of this layer, whichever family it is from."""
        names = dict(layer.named_children())
        mlp = ("mlp",) if "mlp" in names else ("fc1", "fc2")
        attention = [name for name in ATTENTION if name in names]
        if not attention or not names.keys() >= set(mlp):
            raise UnsupportedModel(
                f"layers of type {type(layer).__name__} cannot be run without single blocks"
            )
        attention_norms, mlp_norms = _norms(layer, names)
        bare = bool(attention_norms or mlp_norms)
        return cls(attention[0], mlp, attention_norms, mlp_norms, bare)

    def attention_bytes(self, layer: nn.Module) -> int:
        """Memory of the attention block's weights."""
        return weight_bytes(layer.get_submodule(self.attention))

    def mlp_bytes(self, layer: nn.Module) -> int:
        """Memory of the MLP block's weights."""
        return sum(weight_bytes(layer.get_submodule(name)) for name in self.mlp)

    def without(self, layer: nn.Module, *, attention: bool, mlp: bool) -> nn.Module:
        """A copy of `layer` that shares its modules but lacks one block or both."""
        twin = copy.copy(layer)
        replaced: dict[str, nn.Module] = {}
        if attention:
            replaced |= dict.fromkeys(self.attention_norms, nn.Identity())
            replaced[self.attention] = NoAttention()
        if mlp:
            replaced |= dict.fromkeys((*self.mlp_norms, *self.mlp), nn.Identity())
            replaced[self.mlp[-1]] = NoMLP()
        vars(twin)["_modules"] = {**layer._modules, **replaced}
        # Hooks that were put on the layer as a `forward` of its own would call the original.
        vars(twin).pop("forward", None)
        return twin


def _norms(layer: nn.Module, names: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The norms that serve only the attention, and only the MLP."""
    if getattr(layer, "do_layer_norm_before", True) is False:
        return (), ()
    if "post_feedforward_layernorm" in names:
        attention = {"input_layernorm", "post_attention_layernorm"}
        mlp = {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
    else:
        attention, mlp = BEFORE_ATTENTION, BEFORE_MLP
    return tuple(n for n in names if n in attention), tuple(n for n in names if n in mlp)


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
        blocks = [BlockNames.of(layer) for layer in layers]
        both = self.attention & self.mlp
        self._nothing_left = frozenset(i for i in both if blocks[i].bare)
        self.compiled = model.compiled.without(self.attention | self.mlp)
        self.adapter = model.adapter.with_layers(
            {
                i: blocks[i].without(layers[i], attention=i in self.attention, mlp=i in self.mlp)
                for i in (self.attention | self.mlp) - self._nothing_left
            }
        )
        self.graphs = model.graphs.of(self.adapter)

    def over(self, session: Session) -> Session:
        """A session of this model on the cache and the tokens of one of the whole model."""
        view = copy.copy(session)
        view.model = self
        return view

    def run(
        self,
        hidden: Tensor,
        start: int,
        stop: int,
        step: Step,
        cache: KVCache,
        *,
        tap: Tap | None = None,
    ) -> Tensor:
        """Run what is left of the layers [start, stop) over `hidden` [batch, query, hidden]."""
        for layers, attends in self._stretches(start, stop):
            if attends:
                hidden = super().run(hidden, layers[0], layers[-1] + 1, step, cache, tap=tap)
            else:
                hidden = self._run_without_attention(hidden, layers, tap)
        return hidden

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[list[int], bool]]:
        """Layers in a row that all have their attention, or all lack it."""
        for attends, layers in groupby(range(start, stop), lambda i: i not in self.attention):
            yield list(layers), attends

    def _run_without_attention(
        self, hidden: Tensor, layers: Collection[int], tap: Tap | None
    ) -> Tensor:
        for i in layers:
            if i not in self._nothing_left:
                hidden = hidden.to(self.cache_shape.devices[i])
                hidden = self.adapter.call_layer(i, hidden, None, None, None)
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
        blocks = [BlockNames.of(layer) for layer in layers]
        attention = [b.attention_bytes(layer) for b, layer in zip(blocks, layers, strict=True)]
        mlp = [b.mlp_bytes(layer) for b, layer in zip(blocks, layers, strict=True)]
        whole = sum(attention) + sum(mlp) + weight_bytes(self.adapter.head)
        saved = sum(attention[i] for i in self.attention) + sum(mlp[i] for i in self.mlp)
        return (whole - saved) / whole
