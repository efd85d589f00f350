"""Readings: the likeliest token of every row of logits, and NaN refused, before all else.

Flat passes find both while they make the logits. Behind a pass, whose weights have driven
everything else out of the processor's caches, any further call would cost more than its work, the
first of torch most of all: what kernels note is plain memory, and nothing is cut before it is used.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

# The largest logit of some rows: numbers, or where they are on a device that nobody waits for.
Heights: TypeAlias = "list[float] | Tensor"
EVERY = slice(None)


class Peaks:
    """The likeliest token of each row of one text and how large its logit is, for kernels to note.

    Of equal ones it is the first, and what is noted is NaN where any logit of the row is.
    """

    __slots__ = ("heights", "tokens")

    def __init__(self, rows: int) -> None:
        self.tokens, self.heights = array("q", bytes(8 * rows)), array("f", bytes(4 * rows))

    def __len__(self) -> int:
        return len(self.tokens)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both as tensors [1, row] over the same memory."""
        tokens = torch.frombuffer(self.tokens, dtype=torch.int64)
        return tokens[None], torch.frombuffer(self.heights, dtype=torch.float32)[None]


class Reading:
    """Logits [batch, row, vocab] and what they say of each row.

    `tokens` are the likeliest of each row of one text, which most passes are over, and `heights`
    how large their logits are. The reading of some rows is cut once somebody asks.
    """

    __slots__ = ("_found", "_rows")

    _found: _Found | _Noted
    _rows: slice

    def __init__(self, logits: Tensor, likeliest: Tensor, peaks: Tensor) -> None:
        self._found, self._rows = _Found(logits, likeliest, peaks), EVERY

    @classmethod
    def noted(cls, logits: Tensor, peaks: Peaks) -> Reading:
        """Logits [1, row, vocab], and what kernels note of them by the time that anybody asks."""
        return cls._of(_Noted(logits, peaks), EVERY)

    @classmethod
    def of(cls, logits: Tensor) -> Reading:
        """Found in logits that are there."""
        return cls(logits, most_likely(logits), logits.amax(-1))

    @property
    def logits(self) -> Tensor:
        """Logits [batch, row, vocab]."""
        return self._cut(self._found.logits)

    @property
    def likeliest(self) -> Tensor:
        """The first of the likeliest tokens of each row, [batch, row]."""
        return self._cut(self._found.likeliest)

    @property
    def peaks(self) -> Tensor:
        """The largest logit of each row, [batch, row]: NaN where any of the row is."""
        return self._cut(self._found.peaks)

    @property
    def tokens(self) -> list[int]:
        """The likeliest token of each row of one text."""
        return self._found.tokens(self._rows)

    @property
    def heights(self) -> Heights:
        """The largest logit of each row of one text, for whoever asks later if all are finite."""
        return self._found.heights(self._rows)

    def _cut(self, whole: Tensor) -> Tensor:
        return whole if self._rows is EVERY else whole[:, self._rows]

    def first(self, n: int) -> Reading:
        """Return the reading of the first `n` rows alone."""
        return self.part(slice(n))

    def part(self, rows: slice) -> Reading:
        """Return the reading of some rows alone."""
        own = range(self._found.logits.shape[1])[self._rows]
        if own[rows] == own:
            return self
        return self._of(self._found, slice(own[rows].start, own[rows].stop))

    @classmethod
    def _of(cls, found: _Found | _Noted, rows: slice) -> Reading:
        part = cls.__new__(cls)
        part._found, part._rows = found, rows
        return part

    def copy(self) -> Reading:
        """Return the same in memory of its own."""
        return Reading(self.logits.clone(), self.likeliest.clone(), self.peaks.clone())

    @classmethod
    def joined(cls, several: Sequence[Reading]) -> Reading:
        """Put the rows of several readings one behind another."""
        parts = zip(*((r.logits, r.likeliest, r.peaks) for r in several), strict=True)
        return cls(*(torch.cat(some, dim=1) for some in parts))

    def parts(self, counts: Sequence[int]) -> list[Reading]:
        """Cut a whole reading into those of so many rows each, one behind another."""
        if len(counts) == 1:
            return [self]
        ends = accumulate(counts)
        return [
            self._of(self._found, slice(end - n, end)) for n, end in zip(counts, ends, strict=True)
        ]


class _Found:
    """All rows of a pass as tensors, and their tokens once they were read from the device."""

    __slots__ = ("_tokens", "likeliest", "logits", "peaks")

    def __init__(self, logits: Tensor, likeliest: Tensor, peaks: Tensor) -> None:
        self.logits, self.likeliest, self.peaks = logits, likeliest, peaks
        self._tokens: list[int] | None = None

    def tokens(self, rows: slice) -> list[int]:
        if self._tokens is None:
            self._tokens = self.likeliest[0].tolist()
        return self._tokens[rows]

    def heights(self, rows: slice) -> Heights:
        return self.peaks[0, rows]


class _Noted:
    """The same where kernels note it."""

    __slots__ = ("_peaks", "logits")

    def __init__(self, logits: Tensor, peaks: Peaks) -> None:
        self.logits, self._peaks = logits, peaks

    @property
    def likeliest(self) -> Tensor:
        return self._peaks.tensors()[0]

    @property
    def peaks(self) -> Tensor:
        return self._peaks.tensors()[1]

    def tokens(self, rows: slice) -> list[int]:
        return self._peaks.tokens[rows].tolist()

    def heights(self, rows: slice) -> Heights:
        return self._peaks.heights[rows].tolist()


def most_likely(logits: Tensor) -> Tensor:
    """The likeliest token of each row [..., row, vocab], the first of equal ones."""
    if logits.device.type != "cpu" or logits.dtype.itemsize > 4:
        return logits.argmax(-1)
    # On a CPU numpy finds it several times faster: it looks at many numbers at once.
    return torch.from_numpy(logits.detach().float().numpy().argmax(-1))
