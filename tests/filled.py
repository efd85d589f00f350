"""What reads and writes records, for tests that say as a dictionary what matters to them.

Everything is called as it is: only what a test left out is filled in, and typed, before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ppdbench import scoring
from ppdbench.bench import conditions, counterparts, summary, sums, sweep_summary
from ppdbench.probe import ranks, similarity
from ppdbench.report import answers as fastchat
from ppdbench.report import example_texts, grid, result
from ppdbench.runs import samples as lines
from ppdbench.runs import store, unfinished
from ppdbench.runs.records import KINDS, DecodingMethod, FailedSample, Header, Sample
from tests import records

Told = Mapping[str, Any]
PER_STEP = ("accepted", "proposed", "rows")
NAMED = {"example_id": "1", "task": "t", "method": "greedy"}


def typed(kind: str, sample: Told | Sample) -> Any:
    """A sample of a run of this kind, with what the test says of it."""
    if not isinstance(sample, Mapping):
        return sample
    made = records.sample(kind, **{**NAMED, **sample})
    if "step_ms" in made:  # a test that changes the steps need not change all that is said of them
        n = len(made["step_ms"])
        made |= {name: [*made[name][:n], *[0] * (n - len(made[name]))] for name in PER_STEP}
        made["draft_ms"] = made["draft_ms"][:n] if len(made["draft_ms"]) >= n else []
    return msgspec.convert(made, _form(kind, sample))


def header_of(told: Told | Header) -> Any:
    """The header of a run, with what the test says of it."""
    if not isinstance(told, Mapping):
        return told
    kind = told.get("kind", "decode")
    made = records.header(kind, **{name: part for name, part in told.items() if name != "kind"})
    return msgspec.convert(made, KINDS[kind].header)


def _form(kind: str, sample: Told) -> Any:
    return FailedSample if sample.get("verdict") == "failed" else KINDS[kind].sample


def methods_of(told: Told) -> dict[str, DecodingMethod]:
    """Methods as a header of a run that decodes has them."""
    return dict(header_of({"methods": told}).methods)


def _decoded(samples: Iterable[Told | Sample]) -> list[Sample]:
    return [typed("decode", sample) for sample in samples]


def add_up(samples: Iterable[Told | Sample]) -> list[sums.SampleSums]:
    return sums.add_up(_decoded(samples))


def sums_of(sample: Told | Sample) -> sums.SampleSums:
    return sums.sums_of(typed("decode", sample))


def summarize(header: Told | Header, *parts: Any, **options: Any) -> list[dict[str, Any]]:
    return summary.summarize(header_of(header), *parts, **options)


def overall(header: Told | Header, *parts: Any) -> list[dict[str, Any]]:
    return summary.overall(header_of(header), *parts)


def swept(header: Told | Header, *parts: Any) -> sweep_summary.Swept:
    return sweep_summary.swept(header_of(header), *parts)


def beside(header: Told | Header, *parts: Any) -> list[counterparts.Beside]:
    return counterparts.beside(header_of(header), *parts)


def conditions_of(methods: Told, *parts: Any) -> conditions.Conditions:
    return conditions.Conditions.of(methods_of(methods), *parts)


def lacking(header: Told | Header, samples: Iterable[Told | Sample]) -> str | None:
    return unfinished.unfinished(header_of(header), _decoded(samples))


def StoredRanks(samples: Iterable[Told | Sample]) -> ranks.StoredRanks:
    return ranks.StoredRanks(map(_probed, samples))


def _probed(sample: Told | Sample) -> Any:
    """A probed sample, also one whose output is not as long as its ranks."""
    if not isinstance(sample, Mapping):
        return sample
    n = len(next(iter(sample["ranks"].values()), ()))
    made = typed("probe", {**sample, "output_ids": [0] * n})
    msgspec.structs.force_setattr(made, "output_ids", sample.get("output_ids", [0] * n))
    return made


def similarities(samples: Iterable[Told | Sample]) -> list[similarity.Similarity]:
    return similarity.similarities([typed("similarity", sample) for sample in samples])


def grid_of(sample: Told | Sample, *parts: Any) -> grid.TokenGrid:
    return grid.grid_of(_probed(sample), *parts)


def print_examples(samples: Iterable[Told | Sample], *parts: Any) -> None:
    probed = [typed("probe" if "target" in each else "decode", each) for each in samples]
    example_texts.print_examples(probed, *parts)


def answers(header: Told, label: str, samples: Sequence[Told]) -> tuple[list[Any], int]:
    return fastchat.answers(header_of(header), label, _decoded(samples))  # type: ignore[arg-type]


def write_answers(path: Any, header: Told, samples: Sequence[Told]) -> dict[Path, int]:
    return fastchat.write_fastchat_answers(path, header_of(header), _decoded(samples))


def score_samples(names: Iterable[str], samples: Sequence[Told]) -> dict[str, float]:
    return scoring.score_samples(names, _decoded(samples))  # type: ignore[arg-type]


def to_line(sample: Told | Sample) -> bytes:
    return lines.to_line(typed("decode", sample))


def sample_key(sample: Told | Sample) -> lines.Key:
    if isinstance(sample, Mapping):
        return tuple(sample.get(name) for name in ("task", "example_id", "method", "target"))
    return lines.sample_key(sample)


class RunFolder(store.RunFolder):
    """A run being written."""

    def __init__(self, path: Path, header: Told | Header, **options: Any) -> None:
        super().__init__(path, header_of(header), **options)

    def append(self, sample: Any) -> None:
        """Whatever the test says, checked only as it is stored."""
        if isinstance(sample, Mapping):
            sample = _form(self.done.kind, sample)(**sample)
        super().append(sample)


def problems(header: Told, samples: Sequence[Told]) -> list[result.Problem]:
    return result.problems(header_of(header), _decoded(samples))
