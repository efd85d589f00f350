"""Objectives: a module with the loss that a run trains, and its quality afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from ppdbench.errors import ConfigError
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import Quality
from ppdbench.training.layers import TrainedLayers
from ppdbench.training.states import StatesOnDisk


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

    def keep_states(self, store: StatesOnDisk) -> None:
        """Read the frozen model's states from `store`; only if its plan says `of_states`."""
        raise NotImplementedError

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


class BesideModel(Objective):
    """The base of what is trained beside a model that stays as it is."""

    def __init__(self, model: Any, sequence: int, *, compiled: bool) -> None:
        super().__init__()
        # In a list, so that the frozen model is no part of what is trained or saved.
        frozen = model.requires_grad_(False).eval()
        self._frozen = [TrainedLayers(frozen, sequence, compiled=compiled)]

    def guess_ahead(self, n: int, what: str, sequence: int) -> None:
        """Guess so many tokens ahead, with one of `what` for each; refuse too short a sequence."""
        self.shortest = n + 1
        if sequence < self.shortest:
            raise ConfigError(
                f"--sequence {sequence} is too short for {n} {what}; use {self.shortest} or more"
            )

    @property
    def layers(self) -> TrainedLayers:
        """The frozen model."""
        return self._frozen[0]


class BesideStates(BesideModel):
    """The same for what learns from the states of the model alone."""

    def keep_states(self, store: StatesOnDisk) -> None:
        self.layers.store = store
