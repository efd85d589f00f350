"""Training Medusa heads while the model stays as it is.

Cai et al. 2024, Medusa-1: each head is residual blocks that start as the identity and a matrix
that starts as the model's own, so that at first every head guesses the model's next token. Its
loss weighs decay^h for head h, since what lies further ahead is harder to know. With `kl` a
head learns the distribution that the model itself has when it gets there, with `ce` the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from ppdbench.engine.addons import Addon, save_addon
from ppdbench.methods.medusa.network import METHOD, WORDS, reading_layer, spread_over_vocabulary
from ppdbench.methods.medusa.plan import MedusaPlan
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import DistanceQuality, by_distance
from ppdbench.training.heads import TrainableHead
from ppdbench.training.layers import cross_entropy
from ppdbench.training.marks import IGNORED, ReadAhead, picked, places, unmarked
from ppdbench.training.objective import BesideStates
from ppdbench.training.plans import check_alike

SHAPE = ("heads", "layers", "after", "rank", "draft_vocab")  # options that decide what heads are


class Block(nn.Module):
    """x + SiLU(W x + b), at first x."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, device=device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute in the type of `x`, whatever the weights are trained in."""
        weight, bias = self.linear.weight.to(x.dtype), self.linear.bias.to(x.dtype)
        return x + silu(linear(x, weight, bias))


class MedusaHead(nn.ModuleList):
    """Blocks, then a matrix to the vocabulary; parameters are named as in published files."""

    def __init__(self, own: Tensor, plan: MedusaPlan) -> None:
        blocks = [Block(own.shape[1], own.device) for _ in range(plan.layers)]
        super().__init__([*blocks, TrainableHead(own, plan.rank)])

    def forward(self, normed: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits of normed hidden states; `own` is the model's head."""
        *blocks, readout = self
        for block in blocks:
            normed = block(normed)
        logits: Tensor = readout(normed, own)
        return logits


class MedusaObjective(BesideStates):
    """The weighted sum of the losses of all heads.

    `words` are the ids of the draft vocabulary, rising, if there is one.
    """

    def __init__(
        self,
        model: Any,
        plan: MedusaPlan,
        sequence: int,
        *,
        words: Tensor | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__(model, sequence, compiled=compiled)
        self.guess_ahead(plan.heads, "heads", sequence)
        self.plan = plan
        self.after = reading_layer(plan.after, self.layers.n_layers)
        self.register_buffer("words", words)
        self.words: Tensor | None
        own = self._own()
        self.heads = nn.ModuleList(MedusaHead(own, plan) for _ in range(plan.heads))

    def _own(self) -> Tensor:
        return self.layers.head_rows(self.words)

    def _own_head(self) -> Callable[[Tensor], Tensor]:
        """The model's head; rows of some words have no bias."""
        if self.words is None:
            head: Callable[[Tensor], Tensor] = self.layers.adapter.head
            return head
        rows = self._own()
        return lambda normed: linear(normed, rows)

    def start_from(self, addon: Addon) -> None:
        """Go on with heads that were trained before, and with the words that they guess."""
        ours = self.plan.facts(self)
        check_alike(addon, {name: (addon.options.get(name), ours[name]) for name in SHAPE})
        with torch.no_grad():
            for name, part in self.heads.named_parameters():
                part.copy_(addon.take(name, tuple(part.shape)))
        if self.words is not None:
            self.words = addon.take(WORDS, tuple(self.words.shape))
        addon.close()

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """`loss` to minimise and each distance's own to watch."""
        del t, total
        losses = {}
        tokens, learned = unmarked(blocks)
        guesses = self._guesses(tokens[:, :-1], learned)
        for distance, (logits, own) in enumerate(guesses, start=1):
            if self.plan.loss == "ce":
                follow = picked(tokens[:, 1 + distance :], places(learned, distance))
                found = cross_entropy(logits, self._entries(follow))
            else:
                found = self.layers.divergence(logits, own)
            losses[f"distance {distance}"] = found
        weighted = [self.plan.decay**h * loss for h, loss in enumerate(losses.values())]
        return {"loss": torch.stack(weighted).sum(), **losses}

    def _entries(self, targets: Tensor) -> Tensor:
        """Entries of the draft vocabulary for tokens; those that it lacks are not learned from."""
        if self.words is None:
            return targets
        entries = torch.searchsorted(self.words, targets).clamp(max=len(self.words) - 1)
        return entries.where(self.words[entries] == targets, IGNORED)

    def _guesses(
        self, inputs: Tensor, learned: Tensor | None = None, *, whole: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, by head, its logits and what the model itself says once it has come so far.

        Of inputs [batch, n]: both [batch, n - distance, words], or [place, words] where only some
        are `learned` from; the second over the whole vocabulary if so asked.
        """
        layers, own_head = self.layers, self._own_head()
        states = layers.states(inputs, {self.after, layers.n_layers})
        words = None if whole else self.words
        last = states[layers.n_layers]
        own = ReadAhead(last, learned, lambda rows: layers.logits_of(rows, words))
        with torch.no_grad():
            normed = layers.adapter.norm(states[self.after])
        for distance, head in enumerate(self.heads, start=1):
            chosen = places(learned, distance)
            logits = head(picked(normed[:, :-distance], chosen), own_head)
            yield layers.adapter.cap(logits), own.at(distance)

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> list[DistanceQuality]:
        """Count how often each head's guesses are what the model itself finds most likely there."""

        def guesses(blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
            tokens, learned = unmarked(blocks)
            for logits, own in self._guesses(tokens[:, :-1], learned, whole=True):
                yield (
                    spread_over_vocabulary(logits.flatten(0, -2), self.words, own.shape[-1]),
                    own.flatten(0, -2),
                )

        return by_distance(guesses, ids, sequence, self._own().device, watch=watch)

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        """Write what the method `medusa` reads, in this type or else the model's."""
        tensors = {
            name: tensor.to(dtype or self._own().dtype)
            for name, tensor in self.heads.named_parameters()
        }
        if self.words is not None:
            tensors[WORDS] = self.words
        save_addon(folder, METHOD, self.layers.model, tokenizer, tensors, self.plan.facts(self))
