"""A model without some of its attention and MLP blocks, over the very same weights.

A skipped block adds nothing to the residual stream: `left_out.py` puts something in its place.
Layers of which nothing is left are not called.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any

from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.joined import JoinedCache
from ppdbench.engine.left_out import (
    attention_bytes,
    check_blocks,
    mlp_bytes,
    weight_bytes,
    without,
)
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import Tap


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
        check_blocks(blocks, layers)
        looked_at = model.cache_shape.looked_at
        self._not_attending = self.attention - looked_at
        self._nothing_left = self._not_attending & self.mlp if blocks.apart else frozenset()
        self.parts = None
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

    def _begin(self, step: Step, cache: KVCache | JoinedCache, last: int) -> None:
        for layers, attends in self._stretches(0, last):
            if attends:
                cache.begin(step, layers[0], layers[-1] + 1)

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
