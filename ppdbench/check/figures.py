"""Figures of samples that can be compared: counts per example, of which rates are ratios.

Every rate here is a total over a total (accepted over proposed, matches over tokens, one time
over another). Kept per example, the counts tell equal from equal on average, show which example
changed, and pair two runs example by example. No model, no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.bench.claims import doubt, over_greedy
from ppdbench.bench.sums import SampleSums, add_up
from ppdbench.probe.summary import matches_by_example
from ppdbench.runs.records import FailedSample, Sample
from ppdbench.stats import totals_by_key

Part = tuple[float, float]  # (part, whole)
DECODED = ("committed_per_step", "accepted_per_proposed", "match_rate", "speedup")

# Greedy against itself, beside a method of each batch and as one: no metrics, but what the
# speedups of that batch are judged by.
NOISE, NOISE_AS_METHOD = NOISES = ("noise", "noise as a method")

TRAINED = "trained head"  # part of the subject of a probe's figure


@dataclass(frozen=True, slots=True)
class Figure:
    """A rate as (part, whole) per example; None where the example failed."""

    task: str
    subject: str  # whose rate: a method, or a layer and k
    metric: str
    parts: tuple[Part | None, ...]
    withheld: str | None = None
    """The reason why a speedup may not be claimed; earlier versions did not say it."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The key by which a figure is the only one of its kind in a run."""
        return self.task, self.subject, self.metric

    @property
    def trained(self) -> bool:
        """True if a probe made it of a trained head, not of the model's own."""
        return TRAINED in self.subject.split(", ")


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs, as one hash per example; None where the example failed."""

    task: str
    subject: str
    hashes: tuple[str | None, ...]


def by_question(questions: Sequence[str], parts: Sequence[Part | None]) -> list[Part]:
    """Counts per example with the turns of a conversation added up, of what there is."""
    pairs = zip(questions, parts, strict=True)
    return list(totals_by_key((q, part) for q, part in pairs if part is not None).values())


def rate(parts: Sequence[Part | None]) -> float | None:
    """The ratio of the totals; None of nothing."""
    there = [part for part in parts if part is not None]
    whole = sum(n for _, n in there)
    return sum(part for part, _ in there) / whole if whole else None


def output_hash(sample: Sample) -> str | None:
    """Hash the token ids alone."""
    if isinstance(sample, FailedSample):
        return None
    return hashlib.sha256(json.dumps(sample.output_ids).encode()).hexdigest()[:12]


def decode_figures(task: str, label: str, name: str, group: Sequence[Sample]) -> list[Figure]:
    """The rates of one method on one task, in the order of `group`; those of greedy are all 1,
    but for its times, which are noise.
    """
    if name == "greedy":
        return [noise_of_method(task, label, group)]
    sums = add_up(group)
    made = [None if one.failed else _decoded(one) for one in sums]
    done = [over_greedy(one) for one in sums if not one.failed]
    withheld = {"speedup": doubt(done, len(sums) - len(done))}
    return [
        Figure(
            task,
            label,
            metric,
            tuple(None if p is None else p[metric] for p in made),
            withheld.get(metric),
        )
        for metric in DECODED
    ]


def _decoded(sums: SampleSums) -> dict[str, Part]:
    return {
        "committed_per_step": (sums.tokens - 1, sums.steps),
        "accepted_per_proposed": (sums.accepted, sums.proposed),
        "match_rate": (sums.matches.count(1), len(sums.matches)),
        "speedup": _times(*over_greedy(sums).times),
    }


def noise_figure(task: str, label: str, group: Sequence[Sample]) -> Figure:
    """Greedy decoding against itself on the examples of a task, in turns with a method."""
    sums = add_up(group)
    return _repeated(task, label, NOISE, sums, ((s.baseline_step_ms, s.again_ms) for s in sums))


def noise_of_method(task: str, label: str, group: Sequence[Sample]) -> Figure:
    """The same of greedy decoding as a method of the run."""
    sums = add_up(group)
    return _repeated(task, label, NOISE_AS_METHOD, sums, (over_greedy(s).times for s in sums))


def _repeated(
    task: str, label: str, metric: str, sums: Sequence[SampleSums], times: Iterable[Part]
) -> Figure:
    parts = [None if o.failed else _times(*t) for o, t in zip(sums, times, strict=True)]
    return Figure(task, label, metric, tuple(parts))


def _times(theirs: float, ours: float) -> Part:
    """Two times of one example; an output of one token took no step and weighs nothing."""
    return (round(theirs, 3), round(ours, 3)) if theirs > 0 and ours > 0 else (0.0, 0.0)


def probe_figures(
    task: str, target: str, group: Sequence[Sample], ks: Sequence[int]
) -> list[Figure]:
    """The match rates of every layer and k, with the model's head and with trained ones."""
    return [
        Figure(
            task,
            _place(layer, k, trained, target),
            "match_rate",
            tuple((matched, n) for matched, n in counts.tolist()),
        )
        for field, trained in (("ranks", False), ("head_ranks", True))
        for layer in sorted({n for s in group for n in getattr(s, field, None) or ()}, key=int)
        for k, counts in _counts(group, field, layer, ks)
    ]


def _counts(
    group: Sequence[Sample], field: str, layer: str, ks: Sequence[int]
) -> Iterator[tuple[int, Any]]:
    rows = [getattr(sample, field)[layer] for sample in group]
    return zip(ks, matches_by_example(rows, ks), strict=True)


def _place(layer: str, k: int, trained: bool, target: str) -> str:
    words = [f"layer {layer}, k={k}"]
    words += [TRAINED] if trained else []
    words += [target] if target != "greedy" else []
    return ", ".join(words)
