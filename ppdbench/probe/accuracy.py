"""From stored ranks of drafted tokens to accuracies by distance; no model, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ppdbench.bench.summary import ALL
from ppdbench.errors import DataError
from ppdbench.probe.summary import INTERVAL, matches_by_example, probed_json
from ppdbench.runs.records import Asked, GuessedSample, Header, Sample
from ppdbench.stats import clustered_wilson
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.record import RankedOutput

TOPS = range(1, 11)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy at a distance: how often the first k guesses hold the model's own token."""

    task: str
    method: str
    distance: int
    k: int
    accuracy: float
    low: float
    high: float
    n: int


def accuracies(samples: Sequence[Sample]) -> list[Accuracy]:
    """Per task, then over all of them if there are several."""
    guessed = _guessed(samples)
    tasks = list(dict.fromkeys(sample.task for sample in guessed))
    rows = [
        row
        for task in tasks
        for row in _by_method(task, [sample for sample in guessed if sample.task == task])
    ]
    if len(tasks) > 1:
        rows += _by_method(ALL, guessed)
    if not rows:
        raise DataError("no output is long enough to guess in; raise --max-new-tokens")
    return rows


def _guessed(samples: Sequence[Sample]) -> list[GuessedSample]:
    return [sample for sample in samples if isinstance(sample, GuessedSample)]


def _by_method(task: str, samples: Sequence[GuessedSample]) -> Iterator[Accuracy]:
    for method in dict.fromkeys(sample.method for sample in samples):
        group = [sample for sample in samples if sample.method == method]
        for distance, ranks in _distances(group).items():
            for k, counts in zip(TOPS, matches_by_example(ranks, TOPS), strict=True):
                matched, n = counts.sum(0).tolist()
                low, high, _ = clustered_wilson(counts)
                yield Accuracy(task, method, distance, k, matched / n, low, high, n)


def _distances(group: Sequence[GuessedSample]) -> dict[int, list[Sequence[int]]]:
    """Ranks by distance, a list for each example that has any.

    All distances are of the same places, those where the farthest has a token to guess.
    """
    found: dict[int, list[Sequence[int]]] = {}
    for sample in group:
        lines = _lines(sample)
        if n := min(map(len, lines.values()), default=0):
            for distance, ranks in lines.items():
                found.setdefault(distance, []).append(ranks[:n])
    return dict(sorted(found.items()))


def _lines(sample: GuessedSample) -> dict[int, Sequence[int]]:
    """A sample's ranks by distance, from 1 on."""
    return {key: sample.ranks[str(key)] for key in sorted(map(int, sample.ranks))}


def calibration(header: Header, samples: Sequence[Sample], method: str) -> Accuracies:
    """Return the accuracies that trees for `method`, the label of its samples, are grown from."""
    group = [sample for sample in _guessed(samples) if sample.method == method]
    if not _distances(group):
        raise DataError("no output is long enough to guess in; raise --max-new-tokens")
    ranks = ((sample.task, [*_lines(sample).values()]) for sample in group)
    outputs = [RankedOutput.of(task, lines) for task, lines in ranks if any(lines)]
    return Accuracies.counted(method, outputs, header.model.name, header.model.weight_hash)


def accuracies_json(
    header: Header, samples: Sequence[Asked], rows: Sequence[Accuracy], run: str
) -> dict[str, Any]:
    """Return what `probe --what drafts --format json` prints."""
    return {
        **probed_json(header, samples),
        "interval": INTERVAL,
        "rows": [asdict(row) for row in rows],
        "run": run,
    }
