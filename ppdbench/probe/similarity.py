"""From stored cosines to how close pseudo states are, layer by layer; no model, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ppdbench.bench.summary import ALL
from ppdbench.errors import DataError
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import ComparedSample, Header, Sample
from ppdbench.stats import deviation, mean


@dataclass(frozen=True, slots=True)
class Similarity:
    """The mean cosine of one step's pseudo states with true ones after so many layers."""

    task: str
    method: str
    step: int
    layer: int
    similarity: float
    deviation: float | None
    n: int


def similarities(samples: Sequence[Sample]) -> list[Similarity]:
    """Per task and method, then over all tasks if there are several."""
    tasks = list(dict.fromkeys(sample.task for sample in samples))
    groups = [(task, [s for s in samples if s.task == task]) for task in tasks]
    if len(tasks) > 1:
        groups.append((ALL, list(samples)))
    rows = [row for task, group in groups for row in _by_method(task, group)]
    if not rows:
        raise DataError("no output is long enough to guess in; raise --max-new-tokens")
    return rows


def _by_method(task: str, samples: Sequence[Sample]) -> Iterator[Similarity]:
    values: dict[tuple[str, int, int], list[float]] = {}
    for sample in samples:
        if not isinstance(sample, ComparedSample):
            continue
        for step, by_layer in sample.similarity.items():
            for layer, cosines in by_layer.items():
                key = (sample.method, int(step), int(layer))
                values.setdefault(key, []).extend(cosines)
    for (method, of_step, after), found in sorted(values.items()):
        if found:
            yield Similarity(
                task, method, of_step, after, mean(found), deviation(found), len(found)
            )


def similarities_json(rows: Sequence[Similarity], header: Header, run: str) -> dict[str, Any]:
    """Return what `probe --what similarity --format json` prints."""
    return {
        "model": header.model.name,
        "prompts": in_words(prompting(header)),
        "task": ",".join(header.config.tasks),
        "rows": [asdict(row) for row in rows],
        "run": run,
    }
