"""Training EAGLE's draft network on what the model itself computes, which stays as it is.

Version 1 learns to guess the model's next feature (smooth L1) and, with a tenth of that weight,
what its head makes of it. Uniform noise on the features read keeps it from trusting them more
than its own. Version 3 learns tokens alone, but in several passes, each of which reads what the
one before has guessed: training then meets the errors that drafting will meet ("training-time
test"). More than one pass is possible with version 1 too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, smooth_l1_loss

from ppdbench.engine.addons import Addon, save_addon
from ppdbench.engine.masks import Step
from ppdbench.errors import ConfigError
from ppdbench.methods.eagle.files import METHOD, fill
from ppdbench.methods.eagle.network import (
    SETTINGS,
    DraftNetwork,
    Eagle1,
    Eagle3,
    default_settings,
    draft_layer_config,
    feature_layers,
)
from ppdbench.methods.eagle.plan import DISTANCES, EaglePlan
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import DistanceQuality, by_distance
from ppdbench.training.layers import cross_entropy
from ppdbench.training.marks import ReadAhead, picked, places, unmarked
from ppdbench.training.objective import BesideStates
from ppdbench.training.plans import check_alike

TOKEN_WEIGHT = 0.1  # of the loss on tokens beside that on features


class EagleObjective(BesideStates):
    """The losses of all passes, each weighing `decay` times as much as the one before.

    `words` are the ids of the draft vocabulary, rising, if there is one.
    """

    def __init__(
        self,
        model: Any,
        plan: EaglePlan,
        sequence: int,
        seed: int,
        *,
        words: Tensor | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__(model, sequence, compiled=compiled)
        self.layers.adapter.check_one_state("eagle")
        self.guess_ahead(plan.n_passes, "passes", sequence)
        self.plan, self.seed = plan, seed
        self.network = self._new_network(words)
        self.network.prepare(sequence)

    def _new_network(self, words: Tensor | None) -> DraftNetwork:
        target, plan = self.layers.adapter, self.plan
        settings = default_settings(target)
        settings["intermediate_size"] = plan.ffn or settings["intermediate_size"]
        config = draft_layer_config(settings, "train eagle")
        torch.manual_seed(self.seed)
        if plan.version == 1:
            return Eagle1(target, config).to(target.device)
        reads = feature_layers(len(target.layers))
        n_words = 0 if words is None else len(words)
        network = Eagle3(target, config, reads, n_words, plan.rank).to(target.device)
        start_head(network, words)
        return network

    def start_from(self, addon: Addon) -> None:
        """Go on with a network that was trained before, and with the words that it guesses."""
        theirs, ours = addon.options, self._made()
        check_alike(
            addon,
            {
                "version": (theirs.get("eagle"), ours["eagle"]),
                "draft_vocab": (theirs.get("draft_vocab"), ours["draft_vocab"]),
                "rank": (theirs.get("rank"), ours["rank"]),
                "ffn": (width_of_mlp(theirs), width_of_mlp(ours)),
            },
        )
        for name in ("network", "reads"):
            if theirs.get(name) != ours[name]:
                raise ConfigError(f"--start {addon.folder}: its {name} is another than --model has")
        fill(self.network, addon)
        self.network.float()
        if isinstance(self.network, Eagle3):
            self.network.take_rows()

    def _made(self) -> dict[str, Any]:
        """Describe what the network is made of, as an add-on does."""
        network = self.network
        return {
            "eagle": self.plan.version,
            "network": {name: getattr(network.config, name) for name in SETTINGS},
            "reads": list(network.reads),
            "draft_vocab": 0 if network.d2t is None else network.n_words,
            "rank": self.plan.rank,
        }

    def forward(self, blocks: Tensor, t: int, total: int) -> dict[str, Tensor]:
        """`loss` to minimise and each pass's own to watch."""
        del total
        tokens, learned = unmarked(blocks)
        passes = self._passes(tokens[:, :-1], self.plan.n_passes, t, learned)
        found = [self._one(*read) for read in passes]
        weighted = [self.plan.decay**p * loss for p, loss in enumerate(found)]
        named = {f"distance {p}": loss for p, loss in enumerate(found, start=1)}
        return {"loss": torch.stack(weighted).sum(), **named}

    def _one(self, states: Tensor, features: Tensor, own: Tensor) -> Tensor:
        """The loss of a pass: its states, the features they guess, the model's own logits."""
        logits = self.network.logits(states)
        if self.plan.loss == "ce":
            tokens = cross_entropy(logits, own.argmax(-1))
        else:
            tokens = self.layers.divergence(logits, own)
        if self.plan.version == 3:
            return tokens
        off = smooth_l1_loss(states.float(), features.float(), reduction="sum")
        # Nothing where no place counts, as in a block with a single token of an answer.
        return off / max(1, features.numel()) + TOKEN_WEIGHT * tokens

    def _passes(
        self,
        inputs: Tensor,
        passes: int,
        t: int | None = None,
        learned: Tensor | None = None,
        *,
        whole: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the arguments of `_one`, by pass, for inputs [batch, n]; with noise at step `t`.

        Each is [batch, row, ...], or [row, ...] where only some tokens are `learned` from. The
        model's own logits are over the draft vocabulary, if they are not asked for `whole`.
        """
        layers, network = self.layers, self.network
        found = layers.states(inputs, {*network.reads, layers.n_layers})
        words = None if whole or network.d2t is None else network.all_words()
        last = found[layers.n_layers]
        own = ReadAhead(last, learned, lambda rows: layers.logits_of(rows, words))
        features = network.features(found)
        read = features[:, :-1] if t is None else self._noisy(features[:, :-1], t)
        unroll = unrolled(network, inputs[:, 1:], read, passes)
        for distance, states in enumerate(unroll, start=1):
            chosen = places(learned, distance)
            guessed = picked(features[:, distance:], chosen)
            yield picked(states, chosen), guessed, own.at(distance)

    def _noisy(self, features: Tensor, t: int) -> Tensor:
        """Drawn from the step and the place in the share, so that a resumed run has the same.

        And so that it is the same however the share is split.
        """
        if not self.plan.half_width:
            return features
        drawn = [self._drawn(t, self.first_row + row, each) for row, each in enumerate(features)]
        return features + torch.stack(drawn).to(features)

    def _drawn(self, t: int, row: int, features: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + t + row * 7_368_787)
        return (2 * torch.rand(features.shape, generator=draw) - 1) * self.plan.half_width

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> list[DistanceQuality]:
        """Count how often its guesses are what the model itself finds most likely there.

        What the draft vocabulary lacks counts as no likelier than the least of what it has.
        """

        def guesses(blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
            passes = min(DISTANCES, sequence - 1)
            tokens, learned = unmarked(blocks)
            for states, _, own in self._passes(tokens[:, :-1], passes, None, learned, whole=True):
                logits = self.network.logits(states).float().flatten(0, -2)
                least = float(logits.min()) if len(logits) else 0.0
                yield self.network.spread(logits, least), own.flatten(0, -2)

        return by_distance(guesses, ids, sequence, self.layers.adapter.device, watch=watch)

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        """Write what the method `eagle` reads, in this type or else the model's."""
        network, kind = self.network, dtype or self.layers.adapter.dtype
        tensors = {
            name: tensor.to(kind) if tensor.is_floating_point() else tensor
            for name, tensor in network.state_dict().items()
        }
        options = {**self._made(), "plan": self.plan.facts(self)}
        save_addon(folder, METHOD, self.layers.model, tokenizer, tensors, options)


def width_of_mlp(made: Mapping[str, Any]) -> object:
    """Find the width of a network's MLP in what it is made of."""
    network = made.get("network")
    return network.get("intermediate_size") if isinstance(network, dict) else None


@torch.no_grad()
def start_head(network: Eagle3, words: Tensor | None) -> None:
    """Let a network begin with the model's head: all of it, or the rows for these words."""
    if network.change is not None:
        nn.init.zeros_(network.change[-1].get_parameter("weight"))
    if words is None:
        return
    assert network.d2t is not None
    words = words.to(network.d2t.device)
    network.d2t.copy_(words - torch.arange(len(words), device=words.device))
    if network.lm_head is None:
        network.take_rows()
    else:
        network.lm_head.get_parameter("weight").copy_(network.rows_of_target())


class History:
    """The keys and values of all passes so far, to be differentiated through."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Return all rows of earlier passes, then these."""
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


def unrolled(
    network: DraftNetwork, tokens: Tensor, features: Tensor, passes: int
) -> Iterator[Tensor]:
    """The states that drafting would come to, for every row [batch, n] at once, pass by pass.

    Pass 0 reads the true features. In pass p each row reads the state that the row before it
    came to in pass p - 1, and stands for a chain that left the true rows p places earlier: it
    sees those, and of every pass since then the one row that led to it. Yields the states of
    the rows from p on; before them there is no such chain.
    """
    n, history = tokens.shape[1], History()
    places = torch.arange(n, device=tokens.device)
    back = places[:, None] - places[None]  # [query, key]
    for p in range(passes):
        visible = torch.cat([back >= p, *(back == p - m for m in range(1, p + 1))], dim=1)
        step = Step(0, n, (p + 1) * n, places[None], contiguous=True, visible=visible[None])
        states = network(tokens, features, step, history)
        yield states[:, p:]
        features = pad(states[:, :-1], (0, 0, 1, 0))
