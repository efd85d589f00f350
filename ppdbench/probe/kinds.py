"""Match rates by kind of layer, in models whose layers are of several kinds.

The rate of a kind pools what is known after each of its layers. It says as much of where these
layers stand as of what they do, so beside it stands what such a layer adds to the rate after the
layer before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ppdbench.probe.ranks import RANKS_OF_HEAD, Group, StoredRanks
from ppdbench.stats import clustered_wilson, mean


@dataclass(frozen=True, slots=True)
class KindRate:
    """The share of final tokens among the top k after layers of one kind."""

    task: str
    kind: str
    layers: int  # of this kind, as far as they were probed
    k: int
    head: str  # N: the model's own head, Y: those trained for the layers
    target: str
    match_rate: float
    low: float
    high: float
    n: int  # tokens, counted once for each layer
    added: float | None  # to the rate of the layer before, on average; None where none was probed


def by_kind(kinds: Sequence[str] | None, ranks: StoredRanks, ks: Sequence[int]) -> list[KindRate]:
    """All rates of a probe run by the `kinds` of the model's layers; none where all are of one."""
    if kinds is None:
        return []
    return [
        rate
        for group in ranks.groups
        for head, field in RANKS_OF_HEAD.items()
        for k in ks
        for rate in _rates(_counts(ranks, group, field, k), kinds, k, (group, head))
    ]


Counts = npt.NDArray[np.int64]


def _counts(ranks: StoredRanks, group: Group, field: str, k: int) -> dict[int, Counts]:
    """The counts [example, (matched, n)] after each layer."""
    found: dict[int, Counts] = {}
    for layer in ranks.layers(group, field):
        own, known = ranks.matrix(group, field, layer)
        found[layer] = np.stack([((own < k) & known).sum(1), known.sum(1)], axis=1)
    return found


def _rates(
    counts: dict[int, Counts], kinds: Sequence[str], k: int, names: tuple[Group, str]
) -> list[KindRate]:
    (task, target), head = names
    rates = []
    for kind in dict.fromkeys(kinds):
        own = [layer for layer in counts if kinds[layer - 1] == kind]
        if not own:
            continue
        pooled = np.sum([counts[layer] for layer in own], axis=0)
        matched, n = map(int, pooled.sum(0))
        # Of one token the layers of a kind say much the same.
        low, high, _ = clustered_wilson(pooled, at_most=int(counts[own[0]][:, 1].sum()))
        steps = [_rate(counts[i]) - _rate(counts[i - 1]) for i in own if i - 1 in counts]
        added = mean(steps) if steps else None
        rates.append(
            KindRate(task, kind, len(own), k, head, target, matched / n, low, high, n, added)
        )
    return rates


def _rate(counts: Counts) -> float:
    matched, n = counts.sum(0)
    return float(matched / n)
