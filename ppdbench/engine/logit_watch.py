"""Keeps the logits that chose the tokens of an output, for comparison with another model's."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class LogitWatch:
    """The logits read while one sequence was decoded, as far as they are `wanted`.

    `logits` [vocab] and the number of layers that they were read after, by output position.
    """

    wanted: Container[int]
    logits: dict[int, Tensor] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)

    def note(self, position: int, logits: Tensor, depth: int) -> None:
        """The logits [vocab] that chose output `position`, after `depth` layers."""
        if position in self.wanted:
            # A copy: a part of them would keep those of all other rows.
            self.logits[position] = logits.detach().float().clone()
            self.depths[position] = depth
