"""Whether an output is exactly what greedy decoding gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Verdict = Literal["identical", "tie", "mismatch"]


def first_difference(ours: Sequence[int], greedy: Sequence[int]) -> int | None:
    """The first position at which two outputs differ, a missing token included."""
    for position, (a, b) in enumerate(zip(ours, greedy, strict=False)):
        if a != b:
            return position
    return None if len(ours) == len(greedy) else min(len(ours), len(greedy))


def compare(ours: Sequence[int], greedy: Sequence[int]) -> Verdict:
    """Token ids against token ids, up to and including EOS, both capped alike."""
    return "identical" if first_difference(ours, greedy) is None else "mismatch"
