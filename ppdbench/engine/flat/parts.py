"""Flat parts of layers in models of which not all can run flat: experts and memories stay eager.

A layer that chooses between experts attends as others do. Its attention is a program; what is left
of it, the same modules without attention, runs behind that as it is. Other layers of such a model
run flat as a whole, or not at all. A row may then depend on the rows beside it, as it does in what
runs eagerly: nothing is claimed of such passes that is claimed of flat ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor

from ppdbench.engine.flat.norms import norms_of
from ppdbench.engine.flat.passes import FlatLayers, FlatReadout
from ppdbench.engine.flat.understood import NotUnderstoodError, check_layer, words_of
from ppdbench.engine.left_out import without

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
    return "its layers choose between experts" if adapter.anatomy.experts else None


def is_whole(adapter: Adapter, index: int) -> bool:
    """True for a layer that looks as if it could run flat with all that it does."""
    if adapter.anatomy.memories[index] is not None:
        return False
    try:
        check_layer(adapter.layers[index], words_of(adapter))
    except NotUnderstoodError:
        return False
    return True


def check_half(adapter: Adapter, index: int) -> None:
    """Refuse a layer whose attention cannot run before the rest of it."""
    layer = adapter.layers[index]
    if adapter.anatomy.memories[index] is not None:
        raise NotUnderstoodError("it remembers and attends side by side")
    if norms_of(layer).beside or getattr(layer, "use_parallel_residual", False):
        raise NotUnderstoodError("its blocks stand side by side")


class FlatParts:
    """Some layers of a model as a program: `wholes`, and `halves` of which only the attention is.

    Their products must be laid out flat.
    """

    def __init__(self, adapter: Adapter, wholes: Collection[int], halves: Collection[int]) -> None:
        self.wholes, self.halves = frozenset(wholes), frozenset(halves)
        self.layers = FlatLayers(adapter, self.wholes | self.halves, unfed=self.halves)
        blocks, layers = adapter.blocks, adapter.layers
        self.rests = adapter.with_layers(
            {i: without(blocks, layers[i], attention=True, mlp=False) for i in self.halves}
        )
        self.readout = _readout(adapter)

    def run(
        self, index: int, hidden: Tensor, step: Step, cache: KVCache | JoinedCache
    ) -> Tensor | None:
        """Run a layer over [1, row, hidden], if a part of it is here and the pass can run flat."""
        if index not in self.wholes and index not in self.halves:
            return None
        found = self.layers.run(hidden, range(index, index + 1), step, cache)
        return found if found is None or index in self.wholes else self.rest(index, found, step)

    def rest(self, index: int, hidden: Tensor, step: Step) -> Tensor:
        """Run what a layer does behind its attention."""
        return self.rests.call_layer(index, hidden, None, None, None, step)

    def read(self, hidden: Tensor) -> Reading | None:
        """Read out after any layer, if the readout can run flat."""
        return None if self.readout is None else self.readout.read(hidden)


def _readout(adapter: Adapter) -> FlatReadout | None:
    try:
        return FlatReadout(adapter)
    except NotUnderstoodError:
        return None
