"""The context of a frozen model, for rows that are trained to continue from it.

The text runs once and without gradients; each layer's keys and values stay. Rows that come
later look at them and at each other, so that only those rows are differentiated through.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ppdbench.engine.masks import TrainedRows
from ppdbench.training.layers import TrainedLayers

_NOTHING = torch.empty(0)


class TextRows:
    """Keys and values of a text in one layer.

    A layer is handed what is its own and looks nothing up by its number: passes that are compiled
    would otherwise be compiled for every layer again.
    """

    def __init__(self) -> None:
        self.keys, self.values = _NOTHING, _NOTHING

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keep what the text gives."""
        self.keys, self.values = key, value
        return key, value


class JoinedRows:
    """The same for rows behind the text, some of them with `given` keys and values."""

    def __init__(self, keys: Tensor, values: Tensor, given: Sequence[TrainedRows]) -> None:
        self.keys, self.values, self.given = keys, values, given

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """The text's rows, then these."""
        for given in self.given:
            key, value = given.over(key, value, 0)
        return torch.cat([self.keys, key], dim=2), torch.cat([self.values, value], dim=2)


class TextContext:
    """The keys and values that a text leaves in every layer."""

    def __init__(self, n_layers: int) -> None:
        self.kept = [TextRows() for _ in range(n_layers)]

    def at(self, layer: int) -> TextRows:
        """Return the place where a layer leaves what the text gives."""
        return self.kept[layer]


class LaterContext:
    """The keys and values that rows behind the text look at in every layer."""

    def __init__(self, context: TextContext, given: Sequence[TrainedRows] = ()) -> None:
        self.context, self.given = context, given

    def at(self, layer: int) -> JoinedRows:
        """A layer's own part of it."""
        kept = self.context.kept[layer]
        return JoinedRows(kept.keys, kept.values, [given.of(layer) for given in self.given])


@torch.no_grad()
def read_text(layers: TrainedLayers, tokens: Tensor) -> tuple[TextContext, Tensor]:
    """Run a text [batch, length]; what it leaves, and the states after the last layer."""
    context = TextContext(layers.n_layers)
    return context, layers.last(tokens, context)
