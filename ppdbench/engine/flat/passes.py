"""Flat passes of one model: its layers as one program, its readout as another.

A pass over several rows computes each of them as a pass over that row alone would, so that what
a method verifies is bit for bit what greedy decoding gives. Chains and trees of any size, any
range of layers, taps behind each; batches and masks of other kinds are left to eager passes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ppdbench.engine.flat.layers import LayerWriter, kinds_of
from ppdbench.engine.flat.ops import NOT_STORED, CacheBlocks, Pass, Program
from ppdbench.engine.flat.understood import NotUnderstoodError
from ppdbench.engine.reading import Reading

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.cache import KVCache
    from ppdbench.engine.masks import Step

Tap = Callable[[int, Tensor], None]

# Rows of a prompt that run at once: room for them is kept.
AT_ONCE = 256


class FlatLayers:
    """Some layers of a model as one program; their products must be laid out flat.

    `unattended` layers lack their attention, `unfed` ones their MLP.
    """

    def __init__(
        self,
        adapter: Adapter,
        layers: Collection[int],
        *,
        unattended: Collection[int] = (),
        unfed: Collection[int] = (),
    ) -> None:
        self.adapter = adapter
        self._program = Program(adapter.dtype, adapter.hidden_size)
        self._marks = [0]
        self._kinds = kinds_of(adapter)
        self._blocks: WeakKeyDictionary[KVCache, CacheBlocks] = WeakKeyDictionary()
        writer = LayerWriter(adapter, self._program)
        for index in range(len(adapter.layers)):
            if index in layers:
                try:
                    writer.layer(index, attention=index not in unattended, mlp=index not in unfed)
                except NotUnderstoodError as error:
                    raise NotUnderstoodError(f"layer {index}: {error}") from error
            self._marks.append(self._program.mark())

    def run(
        self, hidden: Tensor, layers: range, step: Step, cache: KVCache, tap: Tap | None = None
    ) -> Tensor | None:
        """Run these layers over [1, row, hidden], if the pass is one that can run flat."""
        given = self._given(step, cache) if len(hidden) == 1 else None
        if given is None:
            return None
        if tap is None:
            return self._run(hidden, layers.start, layers.stop, given)
        for layer in layers:
            hidden = self._run(hidden, layer, layer + 1, given)
            tap(layer + 1, hidden)
        return hidden

    def _run(self, hidden: Tensor, start: int, stop: int, given: Sequence[Pass]) -> Tensor:
        """Some layers in passes of some of the rows each, one behind another."""
        source = hidden.contiguous()
        target = torch.empty_like(source)
        first, last, at = self._marks[start], self._marks[stop], 0
        for each in given:
            rows = slice(at, at := at + each.rows)
            out = self._program.hidden
            self._program.run(first, last, source[0, rows], target[0, rows], out, each)
        return target

    # What a pass takes beside hidden states

    def _given(self, step: Step, cache: KVCache) -> Sequence[Pass] | None:
        """Make them once per step; None if the rows see others than a chain's or a tree's do."""
        if step.flat is None or step.flat[0] is not cache or step.flat[1] is not step.given:
            if cache.batch != 1 or not (step.contiguous or step.sights):
                return None
            step.flat = cache, step.given, self._made(step, cache)
        given: Sequence[Pass] = step.flat[2]
        return given

    def _made(self, step: Step, cache: KVCache) -> Sequence[Pass]:
        start, n, blocks = step.start, step.n_query, self._blocks_of(cache)
        slots = np.arange(start, start + n, dtype=np.int32)
        turns = [turn for kind in self._kinds if (turn := self._turn(step, kind)) is not None]
        if step.given:
            own = slots.copy()
            for trained in step.given:
                cache.put(start + trained.first, trained.keys, trained.values)
                own[trained.first : trained.first + trained.n_rows] = NOT_STORED
            slots = own
        if step.sights is not None:
            positions = step.positions[0].numpy().astype(np.int32)
            seen, offsets = step.sights.rows + np.int32(start), step.sights.offsets
            return [Pass(start, slots, positions, seen, offsets, turns, blocks)]
        passes = []
        for at in range(0, n, AT_ONCE):
            rows = slice(at, at + AT_ONCE)
            places = slots[rows]
            part = [(cos[rows], sin[rows]) for cos, sin in turns]
            passes.append(Pass(start + at, places, places, None, None, part, blocks, causal=True))
        return passes

    def _turn(self, step: Step, kind: str | None) -> tuple[Tensor, Tensor] | None:
        """cos and sin of a pass's rows, [row, width] in float32."""
        rotary = self.adapter.rotary(step, kind)
        if rotary is None:
            return None
        cos, sin = rotary
        return cos[0].float().contiguous(), sin[0].float().contiguous()

    def _blocks_of(self, cache: KVCache) -> CacheBlocks:
        if cache not in self._blocks:
            # Layers that the cache has no rows for are not run over it.
            anywhere, layers = cache.blocks(cache.layers[0]), range(len(self._marks) - 1)
            held = [cache.blocks(i) if i in cache.layers else anywhere for i in layers]
            self._blocks[cache] = CacheBlocks(held)
        return self._blocks[cache]


class FlatReadout:
    """The final norm and the head of a model as one program."""

    def __init__(self, adapter: Adapter) -> None:
        self.dtype = adapter.dtype
        self._program = Program(adapter.dtype, adapter.hidden_size)
        self._logits = LayerWriter(adapter, self._program).readout()

    def read(self, hidden: Tensor) -> Reading | None:
        """Read out after any layer, over [1, row, hidden]; None for more than one sequence."""
        if len(hidden) != 1:
            return None
        rows = hidden.shape[1]
        logits = torch.empty((1, rows, self._logits.width), dtype=self.dtype)
        likeliest = torch.empty((1, rows), dtype=torch.long)
        peaks = torch.empty((1, rows), dtype=torch.float32)
        self._program.run(
            *(0, self._program.mark(), hidden.contiguous()[0], logits[0], self._logits, None),
            likeliest=likeliest[0],
            peaks=peaks[0],
        )
        return Reading(logits, likeliest, peaks.to(self.dtype))


class FlatPasses:
    """Whole passes of a model: of all its layers, or of those that this process runs."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.own = frozenset(i for i, layer in enumerate(adapter.layers) if is_there(layer))
        self.layers = FlatLayers(adapter, self.own)
        self.readout = FlatReadout(adapter)

    def without(self, attention: Collection[int], mlp: Collection[int]) -> FlatPasses | None:
        """The same for a model that lacks some blocks, where what is left can run flat."""
        view = copy.copy(self)
        try:
            view.layers = FlatLayers(self.adapter, self.own, unattended=attention, unfed=mlp)
        except NotUnderstoodError:
            return None
        return view


def is_there(layer: nn.Module) -> bool:
    """False for a layer whose weights were freed."""
    return all(weight.numel() for weight in layer.parameters())
