"""Training prompt tokens: chains behind random places of a text learn to guess what follows.

Parallel prompt decoding (Chen et al. 2024). The frozen model reads the text once. Chains are
then put behind several places of it, none of which sees another: prompt token i behind token
a is held against the model's own distribution i tokens further on, where it has seen all of
the text up to there. Places are drawn anew in each step, and prompt tokens start as ordinary
words.

The variants of the paper's appendix are options: ensembles and their masks (Tables 2 and 6),
text instead of distillation (3), a prefix (4), a head of their own (5), learned weights (7) and
the mean of several exits (8). Its two-stage head is a second run that starts from the first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from ppdbench.engine.addons import Addon, save_addon
from ppdbench.engine.heads import ExitHead
from ppdbench.engine.masks import TrainedRows
from ppdbench.errors import ConfigError, UnsupportedModel
from ppdbench.methods.prompt_tokens.network import METHOD, Prompts, chains_behind
from ppdbench.methods.prompt_tokens.plan import LEARNED, PromptPlan
from ppdbench.runs.workload import Report, silent
from ppdbench.training.context import LaterContext, read_text
from ppdbench.training.evaluate import DistanceQuality, by_distance
from ppdbench.training.heads import TrainableHead
from ppdbench.training.layers import TrainedLayers, cross_entropy
from ppdbench.training.marks import picked, places, unmarked
from ppdbench.training.objective import BesideModel
from ppdbench.training.plans import check_alike


def ordinary_words(tokenizer: Any, vocab_size: int, n: int, seed: int) -> list[int]:
    """Ids of the vocabulary, special ones apart, each once as far as they go."""
    special = set(tokenizer.all_special_ids)
    known = {i for i in tokenizer.get_vocab().values() if i < vocab_size and i not in special}
    ids = sorted(known)
    random.Random(seed).shuffle(ids)
    return [ids[i % len(ids)] for i in range(n)]


class TrainablePrefix(nn.Module):
    """Keys and values [layers, heads, rows, head_dim], at first those that real words have."""

    def __init__(self, layers: TrainedLayers, words: Tensor) -> None:
        super().__init__()
        context, _ = read_text(layers, words)
        self.keys = nn.Parameter(torch.cat([kept.keys for kept in context.kept]).float())
        self.values = nn.Parameter(torch.cat([kept.values for kept in context.kept]).float())


class PromptsObjective(BesideModel):
    """The loss of chains behind random places; everything but the prompts is frozen."""

    def __init__(
        self,
        model: Any,
        plan: PromptPlan,
        sequence: int,
        words: Sequence[int],
        seed: int,
        *,
        compiled: bool = False,
    ) -> None:
        """Prompt tokens start as `words`: one id for each of their rows, then for the prefix."""
        super().__init__(model, sequence, compiled=compiled)
        self.layers.adapter.check_one_state(METHOD)
        self.plan, self.chain, self.seed = plan, plan.chain, seed
        self.shortest = plan.insertions + plan.prompts
        self._check(sequence)
        rows = self.chain.rows(self.chain.prompts)
        ids = torch.tensor([words], device=self.layers.adapter.device)
        start = self.layers.adapter.words(ids[:, :rows])[0]
        self.embeddings = nn.Parameter(start.detach().clone().float())
        if plan.aggregation == LEARNED:
            self.weights = nn.Parameter(self.embeddings.new_full((plan.epts,), 1 / plan.epts))
        if plan.custom_head:
            self.head = TrainableHead(
                self.layers.head_rows(None), plan.rank or None, of_state=plan.of_state
            )
        if plan.prefix:
            self.prefix = TrainablePrefix(self.layers, ids[:, rows:])

    def _check(self, sequence: int) -> None:
        plan, n_layers = self.plan, self.layers.n_layers
        if plan.exits > n_layers:
            raise ConfigError(f"--exits {plan.exits}, but this model has {n_layers} layers")
        shape = self.layers.adapter.cache_shape
        if plan.prefix and (shape.sizes or shape.sources):
            raise UnsupportedModel(
                "--prefix: layers of this model keep keys and values of different sizes, or none "
                "of their own; use --prefix 0"
            )
        if plan.insertions > sequence - plan.prompts:
            raise ConfigError(
                f"--insertions {plan.insertions}: a sequence of {sequence} tokens has "
                f"{max(0, sequence - plan.prompts)} places with {plan.prompts} tokens to guess "
                "behind them; use fewer or a longer --sequence"
            )

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """`loss` to minimise and that of each distance to watch."""
        del total
        tokens, learned = unmarked(blocks)
        where = self._drawn(tokens.shape[1] - 1, t, learned)
        guessed, own = self._guesses(tokens[:, :-1], where)
        losses = {}
        for i in range(self.chain.prompts):
            compared = guessed[:, :, i], own[:, :, i], tokens[:, 2 + i + where]
            found = self._one(*(self._counted(each, where, learned, 1 + i) for each in compared))
            losses[f"distance {i + 1}"] = found
        weighted = [self.plan.decay**i * loss for i, loss in enumerate(losses.values())]
        return {"loss": torch.stack(weighted).mean(), **losses}

    def _drawn(self, length: int, t: int, learned: Tensor | None = None) -> Tensor:
        """Places of this step, each with tokens behind it for all prompt tokens.

        Drawn from the step alone and the same for the whole batch, however it is split; where
        only some tokens are learned from, among places that count for one of the sequences.
        """
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + t)
        order = torch.randperm(length - self.chain.prompts, generator=draw)
        order = order.to(self.layers.adapter.device)
        return self._counting(order, learned)[: self.plan.insertions]

    def _counting(self, where: Tensor, learned: Tensor | None) -> Tensor:
        """Those of some places that count for a sequence, and one at least."""
        counted = places(learned, self.chain.prompts)
        if counted is None:
            return where
        found = where[counted.any(0)[where]]
        return found if len(found) else where[:1]

    def _counted(
        self, values: Tensor, where: Tensor, learned: Tensor | None, distance: int
    ) -> Tensor:
        """Values [batch, place, ...] at the places that count at a distance."""
        counted = places(learned, distance)
        return picked(values, None if counted is None else counted[:, where])

    def _one(self, guessed: Tensor, own: Tensor, follow: Tensor) -> Tensor:
        if self.plan.loss == "ce":
            return cross_entropy(guessed, follow)
        pair = (guessed, own) if self.plan.loss == "kl" else (own, guessed)
        return self.layers.divergence(*pair)

    def _guesses(self, tokens: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, place, prompt, vocab]: what is guessed and what the model itself says."""
        layers, n = self.layers, len(where)
        context, hidden = read_text(layers, tokens)
        with torch.no_grad():
            ahead = torch.arange(1, 1 + self.chain.prompts, device=where.device)
            own = layers.logits(hidden[:, where[:, None] + ahead])
        prompts = self.prompts(hidden.dtype)
        step = chains_behind(prompts, where, tokens.shape[1], tokens.shape[1] - 1)
        rows = layers.adapter.place(prompts.words(n), step.positions)
        later = LaterContext(context, step.given)
        outputs = [rows.expand(len(tokens), -1, -1)]
        for index in range(layers.n_layers):
            outputs.append(layers.layer(index, outputs[-1], step, cache=later))
        exits = [prompts.chains(states, n) for states in outputs[-prompts.exits :]]
        return prompts.logits(layers.adapter, exits), own

    def prompts(self, dtype: torch.dtype) -> Prompts:
        """Return what is being trained, as decoding uses it."""
        plan, head, prefix = self.plan, None, None
        if plan.custom_head:
            parts = {name: part.to(dtype) for name, part in self.head.named_parameters()}
            head = ExitHead(
                parts.get("weight"), parts.get("down"), parts.get("up"), of_state=plan.of_state
            )
        if plan.prefix:
            prefix = TrainedRows(self.prefix.keys.to(dtype), self.prefix.values.to(dtype))
        weights = self.weights.to(dtype) if plan.aggregation == LEARNED else None
        embeddings = self.embeddings.to(dtype)
        return Prompts(self.chain, embeddings, weights, head, plan.exits, prefix)

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> list[DistanceQuality]:
        """Guesses behind evenly spread places."""
        return by_distance(self._evenly, ids, sequence, self.layers.adapter.device, watch=watch)

    def _evenly(self, blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        tokens, learned = unmarked(blocks)
        last = blocks.shape[1] - 2 - self.chain.prompts
        if last < 0:
            return
        every = self._counting(torch.arange(1 + last, device=blocks.device), learned)
        n = min(self.plan.insertions, len(every))
        where = every[torch.linspace(0, len(every) - 1, n, device=blocks.device).long()]
        guessed, own = self._guesses(tokens[:, :-1], where)
        for i in range(self.chain.prompts):
            compared = guessed[:, :, i], own[:, :, i]
            ours, theirs = (self._counted(each, where, learned, 1 + i) for each in compared)
            yield ours.flatten(0, -2), theirs.flatten(0, -2)

    def start_from(self, addon: Addon) -> None:
        """Go on with what was trained before; what it lacks starts as it always does."""
        # Rows are told apart by their place alone.
        options, ours = (
            addon.options,
            {name: getattr(self.plan, name) for name in ("prompts", "epts")},
        )
        check_alike(addon, {name: (options.get(name), value) for name, value in ours.items()})
        trained = addon.names()
        with torch.no_grad():
            for name, part in self.named_parameters():
                if name in trained:
                    part.copy_(addon.take(name, tuple(part.shape)))
        addon.close()

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None = None) -> None:
        """Write what `prompt-tokens` decodes with, in this type or else the model's."""
        dtype = dtype or self.layers.head_rows(None).dtype
        tensors = {name: part.to(dtype) for name, part in self.named_parameters()}
        options = self.plan.facts(self)
        save_addon(folder, METHOD, self.layers.model, tokenizer, tensors, options)
