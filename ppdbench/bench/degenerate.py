"""Outputs that say nothing: empty ones, and those that repeat themselves until they are cut off.

A method that guesses from what it has seen is fast on them, and nobody wants them. They are counted
beside the speedup that they had a part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Degeneration = Literal["empty", "loop"]
REPEATS = 3  # times in a row
SHARE = 0.5  # of the output, at its end
FEWEST = 12  # tokens of the loop together


def degenerate(ids: Sequence[int], text: str | None) -> Degeneration | None:
    """Name what is wrong with an output; None for most.

    Empty: no letter and no digit in what is visible. A loop: the last half or more is one piece
    over and over, three times at least.
    """
    if text is not None and not any(map(str.isalnum, text)):
        return "empty"
    return "loop" if _looped(ids) >= max(FEWEST, SHARE * len(ids)) else None


def _looped(ids: Sequence[int]) -> int:
    """Count the tokens at the end that are one piece, over and over; 0 if there are too few."""
    n = len(ids)
    # Whatever loops for half of its length has few different tokens: most outputs end here.
    if n < FEWEST or len(set(ids)) > n * (1 - SHARE + SHARE / REPEATS):
        return 0
    most = 0
    for period in range(1, n // REPEATS + 1):
        at = n - 1
        while at >= period and ids[at] == ids[at - period]:
            at -= 1
        length = n - 1 - at + period
        if length >= REPEATS * period:
            most = max(most, length)
    return most
