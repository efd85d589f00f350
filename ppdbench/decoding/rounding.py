"""The bound on rounding: how far apart rounding alone may move two logits, and its origin.

Two parts: what writing down a logit in the run's type may cost, and what the stock model's own
passes of one row and of many rows lose on the way there. Neither depends on anything of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# The difference of two logits lies further off than one of many does on average; over thousands
# of positions of real models never by more than seven times the stock model's own noise.
SLACK = 8.0
# In float32 nothing that rounds moves logits by more than this share of their spread.
FLOAT32_SHARE = 2.0**-12


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest difference between two logits that rounding explains.

    `noise` is the stock model's own, `written` what writing down the two logits may cost, and
    `most` what is never exceeded. Half precision has no `most`. A share with as many roundings
    of room as float32's would be several times the spread of all logits in bfloat16, and one
    small enough to decide anything would call a model's own rounding a mismatch. A large bound
    is no free pass: it is that of a stock model whose own passes choose differently.
    """

    noise: float
    written: float
    most: float

    @classmethod
    def of(cls, dtype: torch.dtype, noise: float, largest: float, spread: float) -> Bound:
        """Work out the bound for logits of `dtype`, up to `largest`, over a range `spread`."""
        unit = torch.finfo(dtype).eps / 2
        most = FLOAT32_SHARE * spread if dtype.itemsize >= 4 else float("inf")
        return cls(noise, 2 * unit * largest, most)

    @property
    def value(self) -> float:
        """The bound itself."""
        return min(SLACK * self.noise + self.written, self.most)

    def origin(self) -> dict[str, Any]:
        """Return the bound's origin as runs store it."""
        capped = self.most < SLACK * self.noise + self.written
        return {
            "stock_noise": self.noise,
            "slack": SLACK,
            "written": self.written,
            **({"at_most": self.most} if capped else {}),
        }
