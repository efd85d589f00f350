"""Weights in a few bits: levels, and a scale and a shift for 32 of them that make them numbers.

A weight is scale * level + shift in float32, rounded to the type of the model. Products of a level
and a scale are exact there, so it makes no difference whether they are fused with the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

GROUP = 32  # weights of an output that share a scale and a shift
NAME = "stored_levels"  # the attribute of a weight that says how its levels are read


@dataclass(frozen=True, slots=True)
class Levels:
    """The weights of a product: levels [out, in] below 2^bits, scales and shifts [out, in / 32]."""

    bits: int
    levels: Tensor
    scales: Tensor
    shifts: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and of inputs."""
        out, inputs = self.levels.shape
        return out, inputs

    def by_rows(self, change: Callable[[Tensor], Tensor]) -> Levels:
        """The same with its outputs in another order."""
        return Levels(self.bits, *(change(part) for part in self._parts))

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """The weights themselves, [out, in]."""
        out, inputs = self.shape
        grouped = self.levels.view(out, -1, GROUP).float()
        return (
            (grouped * self.scales[..., None] + self.shifts[..., None]).view(out, inputs).to(dtype)
        )

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.levels, self.scales, self.shifts


Reading = Callable[[], Levels]


def keep(weight: nn.Parameter, reading: Reading) -> None:
    """Note how the levels of a weight are read, for whoever multiplies by them."""
    setattr(weight, NAME, reading)


def levels_of(product: nn.Module) -> Levels | None:
    """Read the levels of a product's weight, if it is known how; None if not."""
    weight: Any = product._parameters.get("weight")
    reading: Reading | None = getattr(weight, NAME, None)
    return None if reading is None else reading()
