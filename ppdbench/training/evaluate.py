"""The worth of a training, on text that was not trained on.

How well every exit reads, by layer; how well drafted tokens are guessed, by distance.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ppdbench.engine.vocabulary import ranks_of
from ppdbench.runs.workload import Report, silent
from ppdbench.training.layers import TrainedLayers, cross_entropy, divergence
from ppdbench.training.marks import picked, places, unmarked

HeadLogits = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExitQuality:
    """One exit: after how many layers, through which head, and how well it predicts.

    head N is the model's own, Y one trained for the layer. `loss` is the mean over tokens,
    `accuracy` the share of tokens that it finds most likely. `top1` and `top3` are match rates:
    how often the last layer's choice is among so many of its own.
    """

    layer: int
    head: str
    loss: float
    perplexity: float
    accuracy: float
    top1: float
    top3: float


@dataclass(frozen=True, slots=True)
class DistanceQuality:
    """Guesses at one distance: 1 is the token after the model's own next token.

    `top1` ... `top10` are shares of positions where the token that the model itself finds most
    likely there, given the text up to it, is among so many guesses.
    """

    distance: int
    loss: float
    top1: float
    top3: float
    top5: float
    top10: float


@dataclass(frozen=True, slots=True)
class CandidateQuality(DistanceQuality):
    """The same for one of several candidates, which differ by the layer that they read."""

    layer: int


Quality = ExitQuality | DistanceQuality
TOPS = (1, 3, 5, 10)
MEASURING = "measuring on held-out text"

# Guesses for blocks [batch, sequence + 1], by distance: logits [n, vocab] and, in the same
# order, the model's own logits at the tokens that they guess; n may be 0.
Guesses = Callable[[torch.Tensor], Iterable[tuple[torch.Tensor, torch.Tensor]]]


@torch.no_grad()
def by_layer(
    model: Any,
    ids: npt.NDArray[Any],
    sequence: int,
    *,
    heads: Mapping[int, HeadLogits] | None = None,
    batch: int = 2,
    watch: Report = silent,
) -> list[ExitQuality]:
    """Measure every exit through the model's own norm and head, over consecutive blocks of `ids`.

    Tokens that are not learned from are not counted.
    `heads` are trained ones by number of layers run: from normed hidden states to logits.
    """
    length = sequence + 1
    count = len(ids) // length
    if not count:
        return []
    layers = TrainedLayers(model.eval(), sequence)
    sums: dict[tuple[str, int], float] = defaultdict(float)
    hits: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    seen = 0
    for part in consecutive(ids, length, batch, layers.adapter.device, watch):
        tokens, learned = unmarked(part)
        chosen, step = places(learned, 0), layers.step(sequence)
        follow = picked(tokens[:, 1:], chosen).flatten()
        seen += len(follow)
        states = {0: layers.embed(tokens[:, :-1], step)}
        for index in range(layers.n_layers):
            states[index + 1] = layers.layer(index, states[index], step)
        final = layers.logits(picked(states[layers.n_layers], chosen)).argmax(-1).flatten()
        for layer in range(1, 1 + layers.n_layers):
            normed = layers.adapter.norm(picked(states[layer], chosen))
            readers: dict[str, HeadLogits] = {"N": layers.adapter.readout}
            if heads and layer in heads:
                readers["Y"] = heads[layer]
            for name, reader in readers.items():
                logits = reader(normed).flatten(0, -2)
                rank = ranks_of(logits, final)
                counts = {"right": logits.argmax(-1) == follow, "top1": rank < 1, "top3": rank < 3}
                sums[name, layer] += float(cross_entropy(logits, follow)) * len(follow)
                hits[name, layer].update({what: int(n.sum()) for what, n in counts.items()})
    return [
        ExitQuality(
            layer,
            head,
            loss / max(1, seen),
            math.exp(min(loss / max(1, seen), 700.0)),
            *(hits[head, layer][what] / max(1, seen) for what in ("right", "top1", "top3")),
        )
        for (head, layer), loss in sorted(sums.items())
    ]


@torch.no_grad()
def by_distance(
    guesses: Guesses,
    ids: npt.NDArray[Any],
    sequence: int,
    device: torch.device,
    *,
    batch: int = 2,
    watch: Report = silent,
) -> list[DistanceQuality]:
    """Guesses at every distance against the model's own choices, over blocks of `ids`."""
    loss: dict[int, float] = defaultdict(float)
    hits: dict[int, Counter[int]] = defaultdict(Counter)
    seen: Counter[int] = Counter()
    for part in consecutive(ids, sequence + 1, batch, device, watch):
        for distance, (logits, own) in enumerate(guesses(part), start=1):
            rank = ranks_of(logits, own.argmax(-1))
            loss[distance] += float(divergence(logits, own)) * len(logits)
            hits[distance].update({k: int((rank < k).sum()) for k in TOPS})
            seen[distance] += len(logits)
    return [
        DistanceQuality(d, loss[d] / n, *(hits[d][k] / n for k in TOPS))
        for d, n in sorted(seen.items())
        if n
    ]


def consecutive(
    ids: npt.NDArray[Any], length: int, batch: int, device: torch.device, watch: Report
) -> Iterator[torch.Tensor]:
    """Batches of blocks [batch, length] one after another; what is left at the end is not used.

    `watch` is told of each when it has been used.
    """
    count = len(ids) // length
    rows = torch.from_numpy(np.asarray(ids[: count * length]).astype(np.int64)).view(count, length)
    watch(MEASURING, 0, count)
    for done, part in enumerate(torch.split(rows, batch), start=1):
        yield part.to(device)
        watch(MEASURING, min(count, done * batch), count)
