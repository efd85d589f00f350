"""Training the matrix while the model stays as it is; at first it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from ppdbench.engine.addons import save_addon
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import DistanceQuality, by_distance
from ppdbench.training.layers import TrainedLayers, cross_entropy
from ppdbench.training.objective import Objective
from ppdbench_repeat.after_next.network import METHOD, read_out
from ppdbench_repeat.after_next.plan import AfterNextPlan


class AfterNextObjective(Objective):
    """The loss of the guesses; the matrix is its one parameter."""

    def __init__(
        self, model: Any, plan: AfterNextPlan, sequence: int, *, compiled: bool = False
    ) -> None:
        super().__init__()
        self.plan, self.shortest = plan, 2
        # In a list, so that the frozen model is no part of what is trained or saved.
        frozen = model.requires_grad_(False).eval()
        self._frozen = [TrainedLayers(frozen, sequence, compiled=compiled)]
        adapter = self._frozen[0].adapter
        width = adapter.hidden_size
        self.matrix = nn.Parameter(torch.zeros(width, width, device=adapter.device))

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """The loss over blocks [batch, sequence + 1]."""
        del t, total
        guessed, own = self._guesses(blocks[:, :-1])
        if self.plan.loss == "ce":
            return {"loss": cross_entropy(guessed, blocks[:, 2:])}
        return {"loss": self._frozen[0].divergence(guessed, own)}

    def _guesses(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the guesses, and the model's own once it has come so far."""
        layers = self._frozen[0]
        with torch.no_grad():
            hidden = layers.last(inputs)
            own = layers.logits(hidden)
        return read_out(layers.adapter, hidden[:, :-1], self.matrix), own[:, 1:]

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> list[DistanceQuality]:
        """How often a guess is what the model itself finds most likely there."""

        def guesses(blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
            guessed, own = self._guesses(blocks[:, :-1])
            yield guessed.flatten(0, 1), own.flatten(0, 1)

        return by_distance(guesses, ids, sequence, self.matrix.device, watch=watch)

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        """Write what the method reads."""
        layers = self._frozen[0]
        tensors = {"matrix": self.matrix.to(dtype or layers.adapter.dtype)}
        save_addon(folder, METHOD, layers.model, tokenizer, tensors, asdict(self.plan))
