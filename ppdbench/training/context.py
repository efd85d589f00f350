"""What a frozen model has read, for rows that are trained to continue from it.

The text runs once and without gradients; each layer's keys and values stay. Rows that come
later look at them and at each other, so that only those rows are differentiated through.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ppdbench.engine.masks import Given
from ppdbench.training.layers import TrainedLayers


class Context:
    """Keys and values of a text in every layer."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Keep what the text gives."""
        self.kept[layer] = key, value
        return key, value


class Later:
    """The same for rows behind the text, some of them with `given` keys and values."""

    def __init__(self, context: Context, given: Sequence[Given] = ()) -> None:
        self.context, self.given = context, given

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """The text's rows, then these."""
        for given in self.given:
            key, value = given.over(key, value, layer)
        keys, values = self.context.kept[layer]
        return torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)


@torch.no_grad()
def read(layers: TrainedLayers, tokens: Tensor) -> tuple[Context, Tensor]:
    """Run a text [batch, length]; what it leaves, and the states after the last layer."""
    context = Context()
    return context, layers.last(tokens, context)
