"""Exits, candidates and draft lengths that nobody asked for: by depth, or else by a short probe.

A quarter or a half of the layers suits models of a few layers and those trained to exit early.
Of others nobody knows beforehand where the final token shows, so that the model is asked: one
pass over a fixed text, read out after some layers. No clock is read: the same model gives the
same answer, and the run's header keeps what it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.decoder import Setup
    from ppdbench.engine.staged import StagedModel

BY_DEPTH = 12  # layers up to which a share of the depth is taken
PROBED = 16  # layers that are read out at most
TOKENS, EVERY = 96, 3  # of the text, and which of its positions are read out
DRAFTED, CANDIDATES = 4, 3  # where nothing is probed
MOST = 8  # drafted tokens, or candidates, where something is
MORE = 0.05  # of the tokens that one more candidate has to find

PROBES = ("exit_probe", "length_probe")  # what a run's facts hold of a method that was probed for

# After some layers: how often the final token was among the 1, 2, ... likeliest.
Shares = Mapping[int, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class ChosenExit:
    """An exit, and how often its likeliest tokens held the final one where it was probed."""

    layers: int
    matches: Shares | None = None

    def told(self, n_layers: int) -> str:
        """Return the exit as tables show it."""
        return f"{self.layers} of {n_layers}"

    def facts(self) -> dict[str, object]:
        """Return what a run's header keeps of the probe."""
        if self.matches is None:
            return {}
        found = {str(layer): _rounded(shares) for layer, shares in self.matches.items()}
        return {"exit_probe": {"exit": self.layers, "matches": found}}


def _rounded(shares: tuple[float, ...]) -> list[float]:
    return [round(share, 4) for share in shares]


@dataclass(frozen=True, slots=True)
class CountedExit:
    """An exit, and how many tokens are drafted there or are candidates."""

    exit: ChosenExit
    count: int

    def drafting(self, n_layers: int) -> dict[str, str]:
        """Return both as tables show them of a method that drafts."""
        return {"exit_layer": self.exit.told(n_layers), "draft_length": str(self.count)}


@dataclass(frozen=True, slots=True)
class ChosenLength:
    """The number of tokens that a second model drafts, and what it was chosen by.

    `agreement` is how often both models found the same token likeliest, `cost` a pass of the
    second by the bytes of the first; None where neither was asked for.
    """

    count: int
    agreement: float | None = None
    cost: float | None = None

    def facts(self) -> dict[str, object]:
        """Return what a run's header keeps of the probe."""
        if self.agreement is None or self.cost is None:
            return {}
        found = {"agreement": round(self.agreement, 4), "cost": round(self.cost, 4)}
        return {"length_probe": {"draft_length": self.count, **found}}


def chosen_exit(setup: Setup, by_depth: int, worth: Callable[[int, float], float]) -> ChosenExit:
    """The exit `by_depth` in models of a few layers, in deeper ones that of the highest `worth`.

    Its worth is a function of the exit and the share of tokens that are likeliest there already.
    Of equal ones the earliest is taken.
    """
    if setup.target.staged.n_layers <= BY_DEPTH:
        return ChosenExit(by_depth)
    matches = _probed(setup, 1, 1)
    return ChosenExit(
        max(matches, key=lambda layer: (worth(layer, matches[layer][0]), -layer)), matches
    )


def chosen_drafts(setup: Setup, exit_layer: int, length: int, by_depth: int) -> CountedExit:
    """The exit and the draft length asked for, 0 where nobody asked: then what is fastest.

    Models of a few layers exit `by_depth` and draft a few tokens.
    """
    model = setup.target.staged
    if model.n_layers <= BY_DEPTH or (exit_layer and length):
        return CountedExit(ChosenExit(exit_layer or by_depth), length or DRAFTED)
    matches = _probed(setup, exit_layer or 1, 1)
    exits = [exit_layer] if exit_layer else list(matches)
    # In layers: reading out takes as long as so many of them.
    head = model.readout_bytes() / model.layer_bytes(0)

    def speed(choice: tuple[int, int]) -> float:
        layers, drafted = choice
        return pace(matches[layers][0], (layers + head) / (model.n_layers + head), drafted)

    lengths = [length] if length else range(1, MOST + 1)
    layers, drafted = max(((e, n) for e in exits for n in lengths), key=speed)
    return CountedExit(ChosenExit(layers, matches), drafted)


def chosen_candidates(setup: Setup, exit_after: int, k: int, by_depth: int) -> CountedExit:
    """The exit and the candidates asked for, 0 where nobody asked: then what saves most layers.

    So many candidates are taken as each find some tokens more. No exit is before `by_depth`,
    which is that of models of a few layers.
    """
    model = setup.target.staged
    if model.n_layers <= BY_DEPTH or (exit_after and k):
        return CountedExit(ChosenExit(exit_after or by_depth), k or CANDIDATES)
    found = _probed(setup, exit_after or by_depth, k or min(MOST, model.vocab_size))
    counts = {e: k or _worthwhile(found[e]) for e in ([exit_after] if exit_after else found)}

    def saved(layers: int) -> float:
        return found[layers][counts[layers] - 1] * (model.n_layers - layers)

    best = max(counts, key=saved)
    return CountedExit(ChosenExit(best, found), counts[best])


def _worthwhile(shares: tuple[float, ...]) -> int:
    """Count the candidates up to the first that finds too few tokens more."""
    gains = (more - less for less, more in pairwise(shares))
    return 1 + sum(1 for _ in takewhile(lambda gain: gain >= MORE, gains))


def chosen_length(setup: Setup, name: str, drafter: Callable[[], StagedModel]) -> ChosenLength:
    """The number of tokens that the second model called `name` drafts where nobody asked for one.

    It is a few beside models of a few layers; beside others what is fastest, by how often both
    models find the same token likeliest and by the bytes that a pass of each reads.
    """
    model = setup.target.staged
    if model.n_layers <= BY_DEPTH:
        return ChosenLength(DRAFTED)

    def measured() -> ChosenLength:
        second = drafter()
        match, cost = agreement(model, second), _pass_bytes(second) / _pass_bytes(model)
        best = max(range(1, MOST + 1), key=lambda drafted: pace(match, cost, drafted))
        return ChosenLength(best, match, cost)

    return setup.part(("draft length", name), measured)


def _pass_bytes(model: StagedModel) -> int:
    return sum(map(model.layer_bytes, range(model.n_layers))) + model.readout_bytes()


def pace(match: float, cost: float, length: int) -> float:
    """Tokens in the time of a whole pass, where each step drafts `length` of them first.

    A drafted token is right with a probability of `match` and takes `cost` of a whole pass.
    """
    tokens = sum((match**n for n in range(length + 1)), 0.0)
    return tokens / (1 + length * cost)


def agreement(one: StagedModel, other: StagedModel) -> float:
    """Measure how often two models find the same token likeliest, over a text that both read."""
    text = _text(one, other)
    ours, theirs = (_likeliest(model, text) for model in (one, other))
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(text)


def _text(*models: StagedModel) -> list[int]:
    """The beginning of the first model's text, as far as all of them can read it."""
    known = min(model.vocab_size for model in models)
    longest = min(TOKENS, *(model.adapter.max_positions for model in models))
    return [token for token in models[0].text[:longest] if token < known]


def _likeliest(model: StagedModel, text: list[int]) -> list[int]:
    """The token that a model finds likeliest after each of a text."""
    import torch

    with torch.inference_mode():
        cache, steps = model.new_cache(len(text))
        ids = torch.tensor([text], device=model.device)
        hidden = model.forward(ids, steps.prefill(len(text)), cache)
        found: list[int] = model.logits(hidden)[0].argmax(-1).tolist()
    return found


def _probed(setup: Setup, first: int, most: int) -> Shares:
    """Probe the model of a run once for all that ask the same."""
    return setup.part(("exits", first, most), lambda: found_among(setup.target.staged, first, most))


def found_among(model: StagedModel, first: int, most: int) -> Shares:
    """Measure after each layer how often the final token is among the 1, 2, ... likeliest."""
    import torch

    layers = range(first, model.n_layers)
    stride = -(-len(layers) // PROBED)
    asked = {*layers[::stride], layers[-1], model.n_layers}
    text = _text(model)
    seen: dict[int, Tensor] = {}

    def tap(layer: int, hidden: Tensor) -> None:
        if layer in asked:
            seen[layer] = hidden[:, EVERY - 1 :: EVERY].clone()

    with torch.inference_mode():
        cache, steps = model.new_cache(len(text))
        ids = torch.tensor([text], device=model.device)
        model.forward(ids, steps.prefill(len(text)), cache, tap=tap)
        final = model.logits(seen.pop(model.n_layers)).argmax(-1, keepdim=True)
        best = {
            layer: model.logits(rows).topk(most, dim=-1).indices for layer, rows in seen.items()
        }
        hits = {layer: (top == final).cumsum(-1).double() for layer, top in best.items()}
    return {layer: tuple(hit.mean((0, 1)).tolist()) for layer, hit in hits.items()}
