"""How well every exit reads: loss and perplexity by layer on text that was not trained on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ppdbench.training.layers import TrainedLayers, cross_entropy

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExitQuality:
    """One exit: after how many layers, through which head, and how well it predicts.

    head N is the model's own, Y one trained for the layer. `loss` is the mean over tokens,
    `accuracy` the share of tokens that it finds most likely.
    """

    layer: int
    head: str
    loss: float
    perplexity: float
    accuracy: float


@torch.no_grad()
def by_layer(
    model: Any,
    ids: npt.NDArray[Any],
    sequence: int,
    *,
    heads: Mapping[int, Head] | None = None,
    batch: int = 8,
) -> list[ExitQuality]:
    """Every exit through the model's own norm and head, over consecutive blocks of `ids`.

    `heads` are trained ones by number of layers run: from normed hidden states to logits.
    """
    length = sequence + 1
    count = len(ids) // length
    if not count:
        return []
    layers = TrainedLayers(model.eval(), sequence)
    rows = torch.from_numpy(np.asarray(ids[: count * length]).astype(np.int64)).view(count, length)
    sums: dict[tuple[str, int], float] = defaultdict(float)
    hits: dict[tuple[str, int], int] = defaultdict(int)
    for part in torch.split(rows, batch):
        part = part.to(layers.adapter.device)
        step = layers.step(sequence)
        hidden = layers.embed(part[:, :-1], step)
        for index in range(layers.n_layers):
            hidden = layers.layer(index, hidden, step)
            normed = layers.adapter.norm(hidden)
            readers: dict[str, Head] = {"N": layers.adapter.readout}
            if heads and index + 1 in heads:
                readers["Y"] = heads[index + 1]
            for name, reader in readers.items():
                logits, targets = reader(normed), part[:, 1:]
                sums[name, index + 1] += float(cross_entropy(logits, targets)) * len(part)
                hits[name, index + 1] += int((logits.argmax(-1) == targets).sum())
    return [
        ExitQuality(
            layer,
            head,
            loss / count,
            math.exp(min(loss / count, 700.0)),
            hits[head, layer] / (count * sequence),
        )
        for (head, layer), loss in sorted(sums.items())
    ]
