"""From stored ranks to match rates, intervals and saturation; no model, no torch.

Positions are counted from 1. Neighbouring tokens of one text are not independent, so the
95 % intervals are Wilson's with the sample size that the spread between examples is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import to_builtins

from ppdbench.errors import DataError
from ppdbench.probe.kinds import KindRate
from ppdbench.probe.ranks import RANKS_OF_HEAD, Group, RankMatrix, StoredRanks, rank_matrix
from ppdbench.runs.drawing import GREEDY
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import Asked, AskedTarget, Header, ProbeHeader
from ppdbench.stats import clustered_wilson

TOTAL = "total"
INTERVAL = "95% Wilson intervals with the effective sample size by example"

BEYOND = -1  # more layers than were probed


@dataclass(frozen=True, slots=True)
class Rate:
    """One match rate: how often the final token is among the top k after `layer` layers."""

    task: str
    layer: int
    k: int
    head: str  # N: the model's own head, Y: one trained for the layer
    target: str
    bucket: str
    match_rate: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Saturation:
    """The layers where the final token first appears as first choice, and from where on it stays.

    Where the last layer was not probed some tokens need more layers than were: the counts lack
    them. A mean is told only of all layers, since it depends on which are looked at.
    """

    task: str
    target: str
    n: int
    earliest_mean: float | None
    stays_mean: float | None
    earliest: dict[int, int]  # layers run -> tokens
    stays: dict[int, int]
    layers: tuple[int, ...]  # that were probed

    @property
    def deepest(self) -> int:
        """The deepest layer that was probed."""
        return self.layers[-1]

    def follows_a_gap(self, layer: int) -> bool:
        """True if the layer before this one was not probed: a token may be there already then."""
        return layer > 1 and layer - 1 not in self.layers


def match_rates(ranks: StoredRanks, ks: Sequence[int], buckets: Mapping[str, int]) -> list[Rate]:
    """Count all rates of a probe run, per bucket and pooled. `buckets` gives each task's size."""
    if not ranks.groups:
        raise DataError("the run holds no finished probe samples")
    return [
        rate
        for group in ranks.groups
        for head, field in RANKS_OF_HEAD.items()
        for layer in ranks.layers(group, field)
        for rate in _bucketed(
            ranks.matrix(group, field, layer), layer, ks, (group, head), buckets[group[0]]
        )
    ]


def _bucketed(
    matrix: RankMatrix, layer: int, ks: Sequence[int], names: tuple[Group, str], size: int
) -> list[Rate]:
    ranks, known = matrix
    starts = range(0, ranks.shape[1], size)
    labels = [*(bucket_label(start + 1, size) for start in starts), TOTAL]
    trials = _by_bucket(known, starts)
    (task, target), head = names
    rates = []
    for k in ks:
        matched = _by_bucket((ranks < k) & known, starts)
        for column, bucket in enumerate(labels):
            counts = np.stack([matched[:, column], trials[:, column]], axis=1)
            n = int(counts[:, 1].sum())
            low, high, _ = clustered_wilson(counts)
            rate = int(counts[:, 0].sum()) / n
            rates.append(Rate(task, layer, k, head, target, bucket, rate, low, high, n))
    return rates


def matches_by_example(
    rows: Sequence[Sequence[int]], ks: Iterable[int]
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield for each k the counts [example, (matched, n)]."""
    ranks, known = rank_matrix(rows)
    n = known.sum(1)
    for k in ks:
        yield np.stack([((ranks < k) & known).sum(1), n], axis=1)


def _by_bucket(marks: npt.NDArray[np.bool_], starts: range) -> npt.NDArray[Any]:
    """Counts [example, bucket], all positions together in the last column."""
    counts = np.add.reduceat(marks, starts, axis=1, dtype=np.int64)
    return np.concatenate([counts, counts.sum(1, keepdims=True)], axis=1)


def bucket_label(first: int, size: int) -> str:
    """`9-16`, or `9` alone."""
    return str(first) if size == 1 else f"{first}-{first + size - 1}"


def saturation(ranks: StoredRanks, n_layers: int | None = None) -> list[Saturation]:
    """Per task and target, over the probed layers of a model that has `n_layers`, if not all."""
    return [_saturation(ranks, group, n_layers) for group in ranks.groups]


def _saturation(all_ranks: StoredRanks, group: Group, n_layers: int | None) -> Saturation:
    layers = all_ranks.layers(group, "ranks")
    matrices = [all_ranks.matrix(group, "ranks", layer) for layer in layers]
    # [layer, token]: whether the token is the layer's first choice
    hits = np.stack([ranks[known] == 0 for ranks, known in matrices])
    n = hits.shape[1]
    first = np.where(hits.any(0), hits.argmax(0), len(layers))
    settled = np.where(hits.all(0), len(layers), hits[::-1].argmin(0))  # layers from the last on
    # A sampled token may be nobody's first choice; with the last layer it is settled all the same.
    last = layers[-1] if n_layers is None else n_layers
    deeper = [layers[-1]] if layers[-1] >= last else [BEYOND]
    earliest, stays = (
        Counter(np.array(layers + deeper)[at].tolist()) for at in (first, len(layers) - settled)
    )
    del earliest[BEYOND], stays[BEYOND]
    whole = layers == list(range(1, last + 1))
    return Saturation(
        *group,
        n,
        _mean(earliest) if whole else None,
        _mean(stays) if whole else None,
        dict(sorted(earliest.items())),
        dict(sorted(stays.items())),
        tuple(layers),
    )


def _mean(counts: Counter[int]) -> float:
    return sum(value * times for value, times in counts.items()) / max(1, counts.total())


def probed_json(header: Header, samples: Sequence[Asked]) -> dict[str, Any]:
    """The model and the examples of a probe, as JSON begins with them."""
    return {
        "model": header.model.name,
        "synthetic": header.model.synthetic,
        "prompts": in_words(prompting(header)),
        "task": ",".join(header.config.tasks),
        "n_examples": len({(s.task, s.example_id) for s in samples}),
    }


def _drawn(targets: Sequence[AskedTarget]) -> dict[str, Any]:
    """All that is known of how tokens were picked, where some were drawn."""
    if all(target.kind == GREEDY for target in targets):
        return {}
    return {"targets": [to_builtins(target) for target in targets]}


def match_rates_json(
    header: ProbeHeader,
    samples: Sequence[Asked],
    rates: Sequence[Rate],
    saturations: Sequence[Saturation],
    kinds: Sequence[KindRate],
    run: str,
) -> dict[str, Any]:
    """Return what `probe --format json` prints."""
    return {
        **probed_json(header, samples),
        "n_tokens": sum(len(s.output_ids) for s in samples),
        "n_layers": header.model.n_layers,
        **_drawn(header.config.targets),
        "interval": INTERVAL,
        "rows": [asdict(rate) for rate in rates],
        "saturation": [asdict(s) for s in saturations],
        "by_kind": [asdict(rate) for rate in kinds],
        "run": run,
    }
