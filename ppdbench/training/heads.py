"""Training a head for each exit layer while everything else stays frozen.

Predictive Pipelined Decoding, Table 4: the head starts as the model's own, the final norm
before it stays as it is. All layers are trained in one pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ppdbench.engine.addons import save_addon
from ppdbench.engine.heads import LAYOUT, METHOD, with_change
from ppdbench.errors import ConfigError
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import ExitQuality, by_layer
from ppdbench.training.layers import cross_entropy
from ppdbench.training.marks import picked, places, unmarked
from ppdbench.training.objective import BesideStates
from ppdbench.training.plans import check_loss

MOST_RANK = 1 << 16  # wider than any model's head


class TrainableHead(nn.Module):
    """The model's own head, or, with a rank, that head and a low-rank change of it (0: none).

    `of_state`: it is the state before the head that changes, which takes far fewer numbers.
    """

    def __init__(self, own: Tensor, rank: int | None, *, of_state: bool = False) -> None:
        super().__init__()
        self.rank, self.of_state = rank, of_state
        if rank is not None and rank > MOST_RANK:
            raise ConfigError(f"--rank {rank}: use {MOST_RANK} or less")
        if rank is None:
            self.weight = nn.Parameter(own.detach().clone().float())
        elif rank:
            # The change starts at zero and its first half at random, as low-rank changes do.
            vocab, width = own.shape
            self.down = nn.Parameter(torch.randn(rank, width, device=own.device) * width**-0.5)
            changed = width if of_state else vocab
            self.up = nn.Parameter(torch.zeros(changed, rank, device=own.device))

    def forward(self, normed: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits of normed hidden states; `own` is the model's head, before any soft cap."""
        if self.rank is None:
            return linear(normed, self.weight.to(normed.dtype))
        if not self.rank:
            return own(normed)
        change = self.down.to(normed.dtype), self.up.to(normed.dtype)
        return with_change(own, normed, change, of_state=self.of_state)


class HeadsObjective(BesideStates):
    """The sum over exit layers of each head's loss."""

    def __init__(
        self,
        model: Any,
        layers: Sequence[int],
        sequence: int,
        *,
        loss: str = "ce",
        rank: int | None = None,
        of_state: bool = False,
        compiled: bool = False,
    ) -> None:
        super().__init__(model, sequence, compiled=compiled)
        check_loss(loss)
        if rank is not None and rank < 1:
            raise ConfigError(f"--rank {rank}: use 1 or more, or --whole for whole heads")
        if of_state and rank is None:
            raise ConfigError("--of-state is a low-rank change, --whole a matrix; give one of them")
        self.loss, self.rank, self.of_state = loss, rank, of_state
        n_layers = self.layers.n_layers
        outside = [n for n in layers if not 1 <= n < n_layers]
        if outside or not layers:
            raise ConfigError(
                f"exit layer {outside[0] if outside else 'missing'}, but this model has "
                f"{n_layers} layers; use 1..{n_layers - 1}"
            )
        own = self.layers.head_rows(None)
        self.heads = nn.ModuleDict(
            {str(n): TrainableHead(own, rank, of_state=of_state) for n in sorted(layers)}
        )

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """`loss` to minimise and each layer's own to watch."""
        del t, total
        tokens, learned = unmarked(blocks)
        chosen = places(learned, 0)
        normed, final = self._frozen_states(tokens[:, :-1], chosen)
        follow = picked(tokens[:, 1:], chosen)
        losses = {
            f"layer {name}": self._one(self._read(head, normed[int(name)]), final, follow)
            for name, head in self.heads.items()
        }
        return {"loss": torch.stack(list(losses.values())).sum(), **losses}

    def _one(self, logits: Tensor, final: Tensor, targets: Tensor) -> Tensor:
        if self.loss == "ce":
            return cross_entropy(logits, targets)
        return self.layers.divergence(logits, final)

    @torch.no_grad()
    def _frozen_states(
        self, inputs: Tensor, chosen: Tensor | None
    ) -> tuple[dict[int, Tensor], Tensor]:
        """Return the heads' inputs, by number of layers run, and the model's own final logits."""
        exits, last = {int(name) for name in self.heads}, self.layers.n_layers
        states = self.layers.states(inputs, exits | {last} if self.loss == "kl" else exits)
        normed = {n: self.layers.adapter.norm(picked(states[n], chosen)) for n in exits}
        final = self.layers.logits(picked(states[last], chosen)) if self.loss == "kl" else inputs
        return normed, final

    def readers(self) -> dict[int, Callable[[Tensor], Tensor]]:
        """Return each head as a function from normed hidden states to logits, by layers run."""
        return {int(name): partial(self._read, head) for name, head in self.heads.items()}

    def _read(self, head: nn.Module, normed: Tensor) -> Tensor:
        layers = self.layers
        return layers.adapter.cap(head(normed, layers.adapter.head))

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> list[ExitQuality]:
        """Measure every exit, through the model's own head and its trained one."""
        return by_layer(self.layers.model, ids, sequence, heads=self.readers(), watch=watch)

    def save(self, folder: Path, tokenizer: Any = None, dtype: torch.dtype | None = None) -> None:
        """Write what `probe --head` reads; its header names no vocabulary."""
        del tokenizer
        tensors = {
            f"layer.{name}.{part}": tensor.detach().to(dtype or self.layers.head_rows(None).dtype)
            for name, head in self.heads.items()
            for part, tensor in head.named_parameters()
        }
        options = {
            "layers": [int(name) for name in self.heads],
            "rank": self.rank,
            **({"of_state": True} if self.of_state else {}),
            "loss": self.loss,
        }
        save_addon(folder, METHOD, self.layers.model, None, tensors, options, LAYOUT)
