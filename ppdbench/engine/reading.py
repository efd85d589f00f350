"""Readings: the likeliest token of every row of logits, and NaN refused, before all else.

Flat passes find both while they make the logits; behind a pass, whose weights have driven
everything else out of the processor's caches, each further call would cost more than its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reading:
    """Logits [batch, row, vocab] and what they say of each row.

    `likeliest` [batch, row] is the first of the likeliest tokens, `peaks` [batch, row] how
    large its logit is: NaN where any of the row is.
    """

    logits: Tensor
    likeliest: Tensor
    peaks: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> Reading:
        """Found in logits that are there."""
        return cls(logits, most_likely(logits), logits.amax(-1))

    def first(self, n: int) -> Reading:
        """Return the reading of the first `n` rows alone."""
        return self if n == self.likeliest.shape[1] else self.part(slice(n))

    def part(self, rows: slice) -> Reading:
        """Return the reading of some rows alone."""
        return Reading(self.logits[:, rows], self.likeliest[:, rows], self.peaks[:, rows])

    def copy(self) -> Reading:
        """Return the same in memory of its own."""
        return Reading(self.logits.clone(), self.likeliest.clone(), self.peaks.clone())

    @classmethod
    def joined(cls, several: Sequence[Reading]) -> Reading:
        """Put the rows of several readings one behind another."""
        parts = zip(*((r.logits, r.likeliest, r.peaks) for r in several), strict=True)
        return cls(*(torch.cat(some, dim=1) for some in parts))

    def parts(self, counts: Sequence[int]) -> list[Reading]:
        """Return the readings of so many rows each, one behind another."""
        sizes = [*counts]
        cut = (
            each.split_with_sizes(sizes, dim=1)
            for each in (self.logits, self.likeliest, self.peaks)
        )
        return list(map(Reading, *cut))


def most_likely(logits: Tensor) -> Tensor:
    """The likeliest token of each row [..., row, vocab], the first of equal ones."""
    if logits.device.type != "cpu" or logits.dtype.itemsize > 4:
        return logits.argmax(-1)
    # On a CPU numpy finds it several times faster: it looks at many numbers at once.
    return torch.from_numpy(logits.detach().float().numpy().argmax(-1))
