"""Flat parts of layers in models of which not all can run flat: experts and memories stay eager.

A layer that chooses between experts attends as others do. Its attention is a program; what is left
of it, the same modules without attention, runs behind that as it is. Where a layer does more around
its attention than that, the program stands in the place of the attention block, and all else runs
as it is; so do parts of that block that make heads of a state and choose or remember. Other layers
of such a model run flat as a whole, or not at all. A row may then depend on the rows beside it, as
it does in what runs eagerly: nothing is claimed of such passes that is claimed of flat ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import adds_itself, mixers
from ppdbench.engine.carried import LayerInputs
from ppdbench.engine.flat.behind import has_more
from ppdbench.engine.flat.heads import block_of
from ppdbench.engine.flat.norms import norms_of
from ppdbench.engine.flat.passes import FlatLayers, FlatReadout
from ppdbench.engine.flat.understood import (
    EXPERTS,
    NotUnderstoodError,
    check_layer,
    has_expert_heads,
    has_experts,
    words_of,
)
from ppdbench.engine.left_out import Through, exchanged, values_of, without
from ppdbench.engine.memory import Forgetful

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.cache import KVCache
    from ppdbench.engine.joined import JoinedCache
    from ppdbench.engine.masks import Step
    from ppdbench.engine.reading import Reading


def why_in_parts(adapter: Adapter) -> str | None:
    """Say what keeps some parts of a model's layers from running flat; None if nothing does."""
    if adapter.anatomy.remembers:
        return "its layers have a memory of their own"
    if adapter.anatomy.experts:
        return "its layers choose between experts"
    if adapter.carried is not None and not isinstance(adapter.carried, LayerInputs):
        return "its layers take more of a token than states and an input"
    return None


def is_whole(adapter: Adapter, index: int) -> bool:
    """True for a layer that looks as if it could run flat with all that it does."""
    if adapter.anatomy.memories[index] is not None or adapter.carried is not None:
        return False
    try:
        check_layer(adapter.layers[index], words_of(adapter))
    except NotUnderstoodError:
        return False
    return True


def attention_of(adapter: Adapter, index: int) -> nn.Module:
    """The block of a layer that attends, if a program can stand in its place."""
    layer, name = adapter.layers[index], adapter.blocks.attention
    if adapter.anatomy.memories[index] == name:
        raise NotUnderstoodError("its attention remembers")
    if name not in dict(layer.named_modules()):
        raise NotUnderstoodError(f"{type(layer).__name__} has no part {name}")
    block = layer.get_submodule(name)
    if block_of(layer, name) is not block or adds_itself(block):
        raise NotUnderstoodError("its attention does more than attend")
    return block


def without_memory(adapter: Adapter, index: int) -> Adapter:
    """The same model, but for a layer that reads each pass as if nothing was before it.

    Beside attention it hands on what it would remember: that takes no time.
    """
    path, layer = adapter.anatomy.memories[index], adapter.layers[index]
    if path is None:
        return adapter
    within = path.startswith(f"{adapter.blocks.attention}.")
    mixer = Forgetful(layer.get_submodule(path)) if within else Through()
    return adapter.with_layers({index: exchanged(layer, path, mixer)})


def can_be_half(adapter: Adapter, index: int) -> bool:
    """True for a layer whose attention, with the norms around it, runs before the rest of it."""
    layer = adapter.layers[index]
    if adapter.carried is not None or has_more(layer) or adapter.anatomy.memories[index]:
        return False
    if getattr(layer, "use_parallel_residual", False) or has_expert_heads(adapter):
        return False
    try:
        return not norms_of(layer).beside
    except NotUnderstoodError:
        return False


class FlatAttention(nn.Module):
    """The attention of a layer as a program, in the place of the block that it was written of."""

    def __init__(self, layers: FlatLayers, index: int, block: nn.Module) -> None:
        super().__init__()
        self.layers, self.own = layers, range(index, index + 1)
        self._values = values_of(block)
        self._pass: tuple[Step, KVCache | JoinedCache] | None = None

    def over(self, step: Step, cache: KVCache | JoinedCache) -> bool:
        """True if it can run in this pass, which is then the next one that it runs in."""
        self._pass = step, cache
        return self.layers.can_run(self.own, step, cache)

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Any:
        """The states that the block gives, and nothing for what else it gives."""
        assert self._pass is not None, "over() was not asked"
        found = self.layers.run(hidden_states, self.own, *self._pass)
        assert found is not None
        return found if self._values is None else (found, *[None] * (self._values - 1))


class BetweenExperts(FlatAttention):
    """The same of attention whose queries experts make, who run as they are."""

    def __init__(self, layers: FlatLayers, index: int, block: nn.Module) -> None:
        super().__init__(layers, index, block)
        self.experts: Any = block.get_submodule(EXPERTS)

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Any:
        """The states that the block gives, and what chose its experts."""
        queries, logits, way = self.experts.map(hidden_states)
        seen = super().forward(torch.cat([hidden_states, queries.flatten(-2)], dim=-1))[0]
        return self.experts.reduce(seen.view_as(queries), way), None, logits


class BehindMemory(FlatAttention):
    """The same of attention whose queries, keys and values something makes that remembers."""

    def __init__(self, layers: FlatLayers, index: int, block: nn.Module) -> None:
        super().__init__(layers, index, block)
        self.made, self.norm = block.get_submodule("qkv_proj"), block.get_submodule("qk_norm")

    def forward(
        self, hidden_states: Tensor, *_: object, past_key_values: Any = None, **__: object
    ) -> Any:
        """The states that the block gives."""
        queries, keys, values = self.made(hidden_states, past_key_values)
        heads = *self.norm(queries, keys), values
        return super().forward(torch.cat([each.flatten(-2) for each in heads], dim=-1))


class FlatParts:
    """Some layers of a model as a program: `wholes`, and others of which only the attention is.

    That of `halves` runs before the rest of a layer, that of others stands `within` them. Their
    products must be laid out flat.
    """

    def __init__(
        self,
        adapter: Adapter,
        wholes: Collection[int],
        halves: Collection[int],
        within: Collection[int] = (),
    ) -> None:
        self.wholes, self.halves = frozenset(wholes), frozenset(halves)
        self.within = frozenset(within)
        own = self.wholes | self.halves | self.within
        self.layers = FlatLayers(adapter, own, unfed=self.halves, within=self.within)
        blocks, layers = adapter.blocks, adapter.layers
        self.rests = adapter.with_layers(
            {i: without(blocks, layers[i], attention=True, mlp=False) for i in self.halves}
        )
        self.attentions = {
            i: _in_place_of(layers[i].get_submodule(blocks.attention), self.layers, i)
            for i in self.within
        }
        self.around = adapter.with_layers(
            {i: exchanged(layers[i], blocks.attention, a) for i, a in self.attentions.items()}
        )
        self._heads_per_kv = adapter.heads_per_kv
        self.readout = _readout(adapter)

    def run(
        self, index: int, hidden: Tensor, step: Step, cache: KVCache | JoinedCache
    ) -> Tensor | None:
        """Run a layer over [1, row, hidden], if a part of it is here and the pass can run flat."""
        if index in self.within:
            return self._around(index, hidden, step, cache)
        if index not in self.wholes and index not in self.halves:
            return None
        found = self.layers.run(hidden, range(index, index + 1), step, cache)
        return found if found is None or index in self.wholes else self.rest(index, found, step)

    def rest(self, index: int, hidden: Tensor, step: Step) -> Tensor:
        """Run what a layer does behind its attention."""
        return self.rests.call_layer(index, hidden, None, None, None, step)

    def _around(
        self, index: int, hidden: Tensor, step: Step, cache: KVCache | JoinedCache
    ) -> Tensor | None:
        """Run a layer as it is around its attention."""
        if len(hidden) != 1 or not self.attentions[index].over(step, cache):
            return None
        around = self.around
        mask = step.added(around.windows[index], self._heads_per_kv[index], around.dtype)
        turn = around.rotary(step, around.rope_kind(index))
        return around.call_layer(index, hidden, mask, turn, cache, step)

    def read(self, hidden: Tensor) -> Reading | None:
        """Read out after any layer, if the readout can run flat."""
        return None if self.readout is None else self.readout.read(hidden)


def _in_place_of(block: nn.Module, layers: FlatLayers, index: int) -> FlatAttention:
    """The program of a layer in the place of its attention."""
    if has_experts(block):
        return BetweenExperts(layers, index, block)
    return (BehindMemory if mixers(block) else FlatAttention)(layers, index, block)


def _readout(adapter: Adapter) -> FlatReadout | None:
    try:
        return FlatReadout(adapter)
    except NotUnderstoodError:
        return None
