"""Objectives: a module with the loss that a run trains, and its quality afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import Quality


class Objective(nn.Module):
    """The base of what is trained: its parameters are.

    `first_row` is the place of `blocks` in this process's share of the batch: not 0 for all but
    the first of several micro-batches. From `shortest` tokens on a sequence is like longer ones:
    it has room for all that is guessed in it. `varies`: later steps train other parts than early
    ones.
    """

    first_row = 0
    shortest = 1
    varies = False

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """Return, at step `t` of `total`, `loss` to minimise over `blocks`, and others to watch."""
        raise NotImplementedError

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> Sequence[Quality]:
        """Measure the quality on held-out tokens, in consecutive blocks of `sequence`."""
        raise NotImplementedError

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        """Write what decoding reads, in this type or else the model's."""
        raise NotImplementedError
