"""A check of times: the parts of an output must add up to how long it took, seen from outside.

The parts are what speedups are made of. Something that a method does and nobody times, or a
prefill that is counted as a step, leaves a gap between their sum and the wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ppdbench.bench.sums import SampleSums

WITHIN = 0.02
# Beginning and ending an output takes a little, which is no part of it.
SLACK_MS = 1.0


def closes(samples: Sequence[SampleSums]) -> bool:
    """True if the times of these samples add up, greedy's beside them included.

    Of most of them: what a busy machine does to a few between two steps is nobody's mistake.
    """
    return all(
        median(gaps) <= WITHIN
        for gaps in ([_gap(one, side) for one in samples] for side in ("", "baseline_"))
        if gaps
    )


def _gap(one: SampleSums, side: str) -> float:
    """The share of the time that the parts lack or have too much; 0 where nobody looked."""
    names = ("wall_ms", "prefill_ms", "prompt_ms")
    wall, prefill, prompt = (getattr(one.sample, f"{side}{name}") or 0.0 for name in names)
    if not wall:
        return 0.0
    steps = one.baseline_every_ms if side else one.every_ms
    return max(_share(abs(wall - prefill - steps), wall), _share(prompt - prefill, prompt))


def _share(missing: float, whole: float) -> float:
    return max(0.0, missing - SLACK_MS) / whole if whole else 0.0
