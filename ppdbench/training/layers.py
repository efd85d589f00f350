"""A forward pass for training: no cache, layer by layer, some samples skipping some layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import kl_div, linear, log_softmax

from ppdbench.engine import attention
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.cache import Rows
from ppdbench.engine.masks import Step, StepMaker
from ppdbench.engine.taps import Tap
from ppdbench.errors import ConfigError, UnsupportedModel
from ppdbench.training.marks import IGNORED
from ppdbench.training.states import StatesOnDisk


class ByLayer(Protocol):
    """A stand-in for a cache, with a part for each layer."""

    def at(self, layer: int) -> Rows:
        """The part of a layer."""
        ...


class TrainedLayers:
    """The layers of a model that is being trained, or read, over whole sequences.

    `store`, where there is one, keeps what `states` comes to.
    """

    def __init__(self, model: Any, sequence: int, *, compiled: bool = False) -> None:
        attention.install(model)
        self.model = model
        self.adapter: Adapter = Adapter(model)
        if sequence > self.adapter.max_positions:
            raise ConfigError(
                f"--sequence {sequence}, but the model handles {self.adapter.max_positions} tokens"
            )
        self.sequence = sequence
        self.store: StatesOnDisk | None = None
        self.n_layers = len(self.adapter.layers)
        self._kinds = [self.adapter.rope_kind(i) for i in range(self.n_layers)]
        self._maker: StepMaker | None = None
        self._loss: Callable[[Tensor, Tensor], Tensor] = self._plain_loss
        self.divergence: Callable[[Tensor, Tensor], Tensor] = divergence
        if compiled:
            self.adapter.compile()
            self._loss = torch.compile(self._plain_loss)
            self.divergence = torch.compile(divergence)

    def step(self, length: int) -> Step:
        """The pass over `length` tokens from the beginning."""
        device = self.adapter.device
        if self._maker is None or self._maker.device != device:
            self.adapter.prepare(self.sequence)
            limit, window = self.adapter.max_positions, self.adapter.narrowest_window
            self._maker = StepMaker(limit, device, window)
        return self._maker.chain(0, length)

    def embed(self, tokens: Tensor, step: Step) -> Tensor:
        """Tokens [batch, sequence] to what layer 0 takes."""
        return self.adapter.embed(tokens, step)

    def layer(
        self,
        index: int,
        hidden: Tensor,
        step: Step,
        kept: Tensor | None = None,
        cache: ByLayer | None = None,
    ) -> Tensor:
        """Layer `index`; with `kept` only those samples pass it, the others go around it."""
        mask = step.mask(self.adapter.windows[index])
        rotary = self.adapter.rotary(step, self._kinds[index])
        if kept is None:
            rows = None if cache is None else cache.at(index)
            return self.adapter.call_layer(index, hidden, mask, rotary, rows, step)
        if self.adapter.anatomy.sources:
            raise UnsupportedModel(
                "layers of this model look at keys and values of others, so no sample can go "
                "around one of them; use --p-max 0"
            )
        if not kept.numel():
            return hidden
        passed = self.adapter.call_layer(index, hidden[kept], mask, rotary, None, step)
        return hidden.index_copy(0, kept, passed.to(hidden.dtype))

    def last(self, tokens: Tensor, cache: ByLayer | None = None, tap: Tap | None = None) -> Tensor:
        """Tokens [batch, sequence] through all layers; `tap` is handed what each one gives."""
        step = self.step(tokens.shape[1])
        hidden = self.embed(tokens, step)
        for index in range(self.n_layers):
            hidden = self.layer(index, hidden, step, cache=cache)
            if tap is not None:
                tap(index + 1, hidden)
        return hidden

    @torch.no_grad()
    def states(self, tokens: Tensor, layers: Collection[int]) -> dict[int, Tensor]:
        """Tokens [batch, sequence] of a frozen model: what so many layers give."""
        if self.store is None or tokens.shape[1] != self.store.length:
            return self._states(tokens, layers)
        return self.store.states(tokens, layers, self._states, self.adapter.dtype)

    def _states(self, tokens: Tensor, layers: Collection[int]) -> dict[int, Tensor]:
        step, found = self.step(tokens.shape[1]), {}
        hidden = self.embed(tokens, step)
        for index in range(max(layers)):
            hidden = self.layer(index, hidden, step)
            if index + 1 in layers:
                found[index + 1] = hidden
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head after any layer."""
        return self.adapter.logits(hidden)

    def head_rows(self, words: Tensor | None) -> Tensor:
        """The head's weights [words, width] for these tokens, for all without."""
        weight: Tensor = self.adapter.head.get_parameter("weight").data
        return weight if words is None else weight[words.to(weight.device)]

    @torch.no_grad()
    def logits_of(self, hidden: Tensor, words: Tensor | None) -> Tensor:
        """The frozen model's logits for these tokens alone, for all without."""
        if words is None:
            return self.logits(hidden)
        bias: Tensor | None = getattr(self.adapter.head, "bias", None)
        shift = None if bias is None else bias[words]
        return self.adapter.cap(linear(self.adapter.norm(hidden), self.head_rows(words), shift))

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the readout after any layer, [..., width], against `targets` [...]."""
        return self._loss(hidden, targets)

    def _plain_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.logits(hidden), targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over tokens; logits [..., vocab], targets [...], less those that are `IGNORED`."""
    flat = targets.flatten()
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2).float(), flat, ignore_index=IGNORED, reduction="sum"
    )
    return total / (flat != IGNORED).sum().clamp(min=1)


def divergence(logits: Tensor, own: Tensor) -> Tensor:
    """KL from the model's `own` distribution, mean over rows; both [..., vocab]."""
    ours = log_softmax(logits.float().flatten(0, -2), -1)
    theirs = log_softmax(own.float().flatten(0, -2), -1)
    return kl_div(ours, theirs, reduction="sum", log_target=True) / max(1, len(ours))
