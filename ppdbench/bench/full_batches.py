"""The time during which a batch is full: only then its speed is that of a batch of its size.

Places are empty at the end of a stream, and taken by prompts now and then. What counts are steps
of sequences that are past their first token, while every other place holds such a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ppdbench.decoding.decoded import Decoded

# The share of a step that must lie in full time. Sequences of one pass end their steps one after
# another, so that the last before an end of an output is not wholly in it.
WITHIN = 0.9


@dataclass(frozen=True, slots=True)
class Place:
    """A sequence's time at its place, and the steps of it that count."""

    size: int
    """The number of places."""
    full_ms: float = 0.0
    full_steps: int = 0
    full_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Seated:
    """An output and when it took its place, in ms of a clock that all of its stream share."""

    decoded: Decoded
    began_ms: float

    @property
    def bounds(self) -> list[float]:
        """The time of the first token, and the end of each step."""
        first = self.began_ms + self.decoded.prefill_ms
        return list(accumulate(self.decoded.step_ms, initial=first))


def places(stream: Sequence[Seated], size: int) -> list[Place]:
    """The time that counts of each output of a stream with so many places."""
    bounds = [seated.bounds for seated in stream]
    full = list(_full(bounds, size))
    return [_place(seated, own, full, size) for seated, own in zip(stream, bounds, strict=True)]


def _full(bounds: Sequence[Sequence[float]], size: int) -> Iterator[tuple[float, float]]:
    """Yield the spans of time in which so many sequences took steps."""
    changes = sorted([(own[0], 1) for own in bounds] + [(own[-1], -1) for own in bounds])
    counts = accumulate(change for _, change in changes)
    for (start, end), count in zip(pairwise(at for at, _ in changes), counts, strict=False):
        if count == size and end > start:
            yield start, end


def _place(
    seated: Seated, bounds: Sequence[float], full: Sequence[tuple[float, float]], size: int
) -> Place:
    counted = [
        (end - start, tokens)
        for (start, end), tokens in zip(pairwise(bounds), _committed(seated.decoded), strict=True)
        if end > start and _shared(start, end, full) >= WITHIN * (end - start)
    ]
    return Place(
        size,
        full_ms=sum(ms for ms, _ in counted),
        full_steps=len(counted),
        full_tokens=sum(tokens for _, tokens in counted),
    )


def _committed(decoded: Decoded) -> list[int]:
    """The tokens of each step: one more than it accepted, unless the output ended at a draft."""
    tokens = [1 + accepted for accepted in decoded.accepted]
    if tokens:
        tokens[-1] -= 1 + sum(tokens) - len(decoded.output_ids)
    return tokens


def _shared(start: float, end: float, spans: Sequence[tuple[float, float]]) -> float:
    """The time that a span shares with some others."""
    return sum(max(0.0, min(end, b) - max(start, a)) for a, b in spans)
