"""Bugs that are planted into flat passes, which checks of such passes must find.

Each stands where a kernel could have it: in what a layer leaves, in angles, in the keys that a row
sees, in weights as they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.flat.ops import Call, Turns, run_all
from ppdbench.engine.flat.passes import FlatLayers, FlatPasses
from ppdbench.engine.flat.products import FlatProduct
from ppdbench.engine.joined import JoinedCache
from ppdbench.engine.masks import Sights, Step
from ppdbench.engine.taps import Tap

BLOCK, DIGITS = 16, 4


class _BuggyLayers(FlatLayers):
    """The layers of other passes, run one by one with a bug in each."""

    def __init__(self, layers: FlatLayers) -> None:
        vars(self).update(vars(layers))

    def run(
        self,
        hidden: Tensor,
        layers: range,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None = None,
        behind: Callable[[Tensor], Call] | None = None,
    ) -> Tensor | None:
        seen = self.seen(step)
        if not hidden.is_floating_point():
            hidden = self.adapter.embedding(hidden)
        for i in layers:
            out = super().run(hidden, range(i, i + 1), seen, cache)
            if out is None:
                return None
            hidden = self.left(hidden, out)
            if tap is not None:
                tap(i + 1, hidden)
        if behind is not None:
            run_all([behind(hidden)])
        return hidden

    def seen(self, step: Step) -> Step:
        """The step that is run in place of another."""
        return step

    def left(self, hidden: Tensor, out: Tensor) -> Tensor:
        """The states that a layer leaves of those that it was given."""
        return out


class TooLarge(_BuggyLayers):
    """States are four percent too large."""

    def left(self, hidden: Tensor, out: Tensor) -> Tensor:
        """All of them."""
        return 1.04 * out


class NoLastBlock(_BuggyLayers):
    """The last columns of the output are forgotten, as by a loop without its rest."""

    def left(self, hidden: Tensor, out: Tensor) -> Tensor:
        """Those columns as they were."""
        return torch.cat([out[..., :-BLOCK], hidden[..., -BLOCK:]], dim=-1)


class TurnedBack(_BuggyLayers):
    """Queries and keys are turned the wrong way."""

    def _turns(self, step: Step) -> Turns:
        turns = super()._turns(step)
        return Turns([(cos, -sin) for cos, sin in turns.tables], whole=turns.whole)


class OneShort(_BuggyLayers):
    """The keys that a row sees are counted one short, so that it does not see itself."""

    def seen(self, step: Step) -> Step:
        """The same rows, each without itself."""
        if step.sights is None:
            rows = [np.arange(row) for row in range(step.n_query)]
        else:  # each row names itself last
            rows = [line[:-1] for line in np.split(step.sights.rows, step.sights.offsets[1:-1])]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        return replace(step, sights=Sights(np.concatenate(rows).astype(np.int32), offsets))


@contextmanager
def _replaced(kind: type[_BuggyLayers], flat: FlatPasses) -> Iterator[None]:
    before = flat.layers
    flat.layers = kind(before)
    try:
        yield
    finally:
        flat.layers = before


@contextmanager
@torch.inference_mode()
def coarse(flat: FlatPasses) -> Iterator[None]:
    """Matrices have few of their digits for a while, less than bfloat16 has."""
    modules = [module for layer in flat.adapter.layers for module in layer.modules()]
    blobs = [module.flat.blob for module in modules if isinstance(module, FlatProduct)]
    before = [blob.clone() for blob in blobs]
    for blob in blobs:
        blob.copy_(rounded(blob))
    try:
        yield
    finally:
        for blob, old in zip(blobs, before, strict=True):
            blob.copy_(old)


def rounded(weight: Tensor) -> Tensor:
    """Weights with few of their digits."""
    size, power = torch.frexp(weight.float())
    return torch.ldexp((size * 2**DIGITS).round(), power - DIGITS).to(weight.dtype)


FLAT_BUGS: dict[str, Callable[[FlatPasses], AbstractContextManager[None]]] = {
    "states 4 % too large": partial(_replaced, TooLarge),
    "last columns forgotten": partial(_replaced, NoLastBlock),
    "turned the wrong way": partial(_replaced, TurnedBack),
    "keys counted one short": partial(_replaced, OneShort),
    "matrices read coarsely": coarse,
}
