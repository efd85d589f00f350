"""Stored ranks as matrices: made once for all figures that count them, for that is most work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ppdbench.errors import DataError
from ppdbench.runs.records import ProbedSample, Sample

Group = tuple[str, str]  # task and target
RANKS_OF_HEAD = {"N": "ranks", "Y": "head_ranks"}  # the model's own head, a trained one


class RankMatrix(NamedTuple):
    """The ranks of one layer, and where there are any: outputs may differ in length."""

    ranks: npt.NDArray[Any]  # [example, position]
    known: npt.NDArray[np.bool_]


class StoredRanks:
    """The ranks of probed samples by task and target, by head and layer."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.groups: dict[Group, list[ProbedSample]] = {}
        for sample in samples:
            if not isinstance(sample, ProbedSample):
                continue
            group = sample.task, sample.target or "greedy"
            self.groups.setdefault(group, []).append(sample)
        self._made: dict[tuple[Group, str, int], RankMatrix] = {}

    def layers(self, group: Group, field: str) -> list[int]:
        """List the layers that any of the samples was probed after."""
        names = {name for sample in self.groups[group] for name in getattr(sample, field) or ()}
        return sorted(map(int, names))

    def matrix(self, group: Group, field: str, layer: int) -> RankMatrix:
        """One layer, of all samples of a group."""
        found = self._made.get((group, field, layer))
        if found is None:
            rows = _rows(self.groups[group], field, str(layer))
            found = self._made[group, field, layer] = rank_matrix(rows)
        return found


def _rows(samples: Sequence[ProbedSample], field: str, layer: str) -> list[Sequence[int]]:
    rows: list[Sequence[int]] = [(getattr(s, field) or {}).get(layer) or () for s in samples]
    for sample, row in zip(samples, rows, strict=True):
        if not row:
            raise DataError(
                f"example {sample.example_id} of {sample.task} has no {field} of layer "
                f"{layer}, others do; run `ppdbench probe` again"
            )
    return rows


def rank_matrix(rows: Sequence[Sequence[int]]) -> RankMatrix:
    """Ranks of several outputs."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    found = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
    known = np.arange(lengths.max()) < lengths[:, None]
    if known.all():
        return RankMatrix(found.reshape(known.shape), known)
    ranks = np.zeros(known.shape, np.int32)
    ranks[known] = found
    return RankMatrix(ranks, known)
