"""Training hidden transfer: one matrix after another, each against the model's own distribution.

Wu et al. 2024. The frozen model reads the text once. Behind every token q a pseudo state of step i
is put at position q + i, and its output is held against that of the true token there. `mask` says
what a pseudo state sees besides the text up to q:

- teacher-forced: the true tokens up to q + i - 1. This is how the paper trains, and a gap, since
  decoding does not have them yet.
- chained: the pseudo states of the steps before, already trained, as in decoding.
- masked: nothing, which is what the paper's ablation asks for (Figure 7).

A matrix starts as the identity. With candidates to compare, the step after the last one is
trained once after each of several layers (Figures 5 and 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from ppdbench.engine.addons import Addon, save_addon
from ppdbench.engine.masks import Step
from ppdbench.methods.hidden_transfer.network import (
    METHOD,
    PseudoStatePass,
    TransferMatrices,
    read_transfer,
    transferred,
)
from ppdbench.methods.hidden_transfer.plan import CHAINED, MASKED, TRUE, TransferPlan
from ppdbench.runs.workload import Report, silent
from ppdbench.training.context import LaterContext, TextContext
from ppdbench.training.evaluate import CandidateQuality, DistanceQuality, by_distance
from ppdbench.training.marks import picked, places, unmarked
from ppdbench.training.objective import BesideModel
from ppdbench.training.plans import check_alike


class TransferObjective(BesideModel):
    """The loss of one matrix; which one, the step of the training says."""

    varies = True

    def __init__(
        self, model: Any, plan: TransferPlan, sequence: int, *, compiled: bool = False
    ) -> None:
        super().__init__(model, sequence, compiled=compiled)
        self.layers.adapter.check_one_state(METHOD)
        self.plan, self.jobs = plan, plan.jobs
        self.guess_ahead(max(map(len, self.jobs)), "steps", sequence)
        size, device = self.layers.adapter.hidden_size, self.layers.adapter.device
        self.matrices = nn.ParameterList(torch.eye(size, device=device) for _ in self.jobs)

    def start_from(self, addon: Addon) -> None:
        """Go on with matrices that were trained before; those to compare start as always."""
        found = read_transfer(addon, self.layers.n_layers, self.layers.adapter.hidden_size)
        check_alike(addon, {"layers": (_listed(found.layers), _listed(self.plan.layers))})
        with torch.no_grad():
            for ours, theirs in zip(self.matrices, found.matrices, strict=False):
                ours.copy_(theirs)

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """`loss` to minimise, which is that of one job, in equal shares of the steps."""
        job = t * len(self.jobs) // total
        guessed, own = self._trained(blocks, job)
        if self.plan.loss == "reverse-kl":
            guessed, own = own, guessed
        loss = self.layers.divergence(guessed, own)
        return {"loss": loss, self._name(job): loss}

    def _name(self, job: int) -> str:
        layers = self.jobs[job]
        after = f", layer {layers[-1]}" if self.plan.compare else ""
        return f"step {len(layers)}{after}"

    def _transfer(self, job: int) -> TransferMatrices:
        """The steps up to that of a job; only its own matrix is differentiated."""
        steps = self.jobs[job]
        earlier = tuple(matrix.detach() for matrix in self.matrices[: len(steps) - 1])
        return TransferMatrices(steps, (*earlier, self.matrices[job]))

    def _trained(self, blocks: Tensor, job: int) -> tuple[Tensor, Tensor]:
        """Logits of the job's guesses, and the model's own: [..., vocab]."""
        tokens, learned = unmarked(blocks)
        transfer, ahead = self._transfer(job), len(self.jobs[job])
        where, counted = self._places(tokens.shape[1] - 1, learned, ahead)
        if self.plan.mask == CHAINED:
            steps, known = tuple(range(1, 1 + ahead)), 0
        else:
            transfer = TransferMatrices(transfer.layers[-1:], transfer.matrices[-1:])
            steps, known = (ahead,), ahead - 1 if self.plan.mask == TRUE else 0
        n = tokens.shape[1] - 1
        states, last = self._guesses(
            tokens[:, :-1], transfer, PseudoStatePass(where, steps, n, n - 1, known)
        )
        return self._compared(states[:, -1], last[:, where + ahead], counted)

    def _compared(
        self, states: Tensor, last: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logits of guesses and the model's own, of states [batch, place, hidden] of both."""
        with torch.no_grad():
            own = self.layers.logits(picked(last, counted))
        return self.layers.logits(picked(states, counted)), own

    def _places(self, n: int, learned: Tensor | None, ahead: int) -> tuple[Tensor, Tensor | None]:
        """Places among `n` tokens that have one so far ahead, and which of them count for whom.

        Where only some tokens are learned from, those that count for nobody are left out.
        """
        counted = places(learned, ahead)
        if counted is None:
            return torch.arange(n - ahead, device=self.layers.adapter.device), None
        where = counted.any(0).nonzero()[:, 0]
        if not len(where):  # a pass has rows all the same
            where = where.new_zeros(1)
        return where, counted[:, where]

    def _guesses(
        self, tokens: Tensor, transfer: TransferMatrices, where: PseudoStatePass
    ) -> tuple[Tensor, Tensor]:
        """Pseudo states [batch, step, place, hidden] in the end, and those of the text."""
        layers, context = self.layers, TextContext(self.layers.n_layers)
        states: dict[int, Tensor] = {}

        def tap(layer: int, hidden: Tensor) -> None:
            if layer in transfer.layers:
                states[layer] = hidden

        def run(hidden: Tensor, first: int, last: int, step: Step) -> Tensor:
            for index in range(first, last):
                hidden = layers.layer(index, hidden, step, cache=LaterContext(context))
            return hidden

        with torch.no_grad():
            last = layers.last(tokens, context, tap)
        return transferred(transfer, states, where, layers.n_layers, run), last

    # What it is worth

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> Sequence[DistanceQuality | CandidateQuality]:
        """Guesses as decoding makes them, by distance; of candidates those of the last step."""

        def measured(job: int) -> list[DistanceQuality]:
            def guesses(blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
                return self._decoded(blocks, job)

            return by_distance(guesses, ids, sequence, self.layers.adapter.device, watch=watch)

        if not self.plan.compare:
            return measured(len(self.jobs) - 1)
        candidates = range(len(self.plan.layers), len(self.jobs))
        return [
            CandidateQuality(**asdict(quality), layer=self.jobs[job][-1])
            for job in candidates
            for quality in measured(job)[-1:]
        ]

    def _decoded(self, blocks: Tensor, job: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, by distance, the guesses up to that of a job, and the model's own logits there."""
        tokens, learned = unmarked(blocks)
        ahead, n = len(self.jobs[job]), tokens.shape[1] - 1
        where, counted = self._places(n, learned, ahead)
        steps, masked = tuple(range(1, 1 + ahead)), self.plan.mask == MASKED
        rows = PseudoStatePass(where, steps, n, n - 1, masked=masked)
        states, last = self._guesses(tokens[:, :-1], self._transfer(job), rows)
        for step in steps:
            guessed, own = self._compared(states[:, step - 1], last[:, where + step], counted)
            yield guessed.flatten(0, -2), own.flatten(0, -2)

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None = None) -> None:
        """Write what `hidden-transfer` decodes with; each candidate in a folder of its own."""
        if not self.plan.compare:
            self._save(len(self.jobs) - 1, folder, tokenizer, dtype)
        for job in range(len(self.plan.layers), len(self.jobs)):
            self._save(job, folder / f"layer-{self.jobs[job][-1]}", tokenizer, dtype)

    def _save(self, job: int, folder: Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        transfer, dtype = self._transfer(job), dtype or self.layers.adapter.dtype
        tensors = {f"step.{i}": m.to(dtype) for i, m in enumerate(transfer.matrices, start=1)}
        options = {**self.plan.facts(self), "layers": transfer.layers}
        del options["compare"]
        save_addon(folder, METHOD, self.layers.model, tokenizer, tensors, options)


def _listed(layers: Sequence[int]) -> str:
    """Layers as they are typed."""
    return ",".join(map(str, layers))
