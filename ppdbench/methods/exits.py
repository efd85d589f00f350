"""The exit of a method that was told none: by depth for small models, else by a short probe.

A quarter or a half of the layers suits models of a few layers and those trained to exit early.
Of others nobody knows beforehand where the final token shows, so that the model is asked: one
pass over a fixed text, read out after some layers. The same model gives the same exit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.engine.staged import StagedModel

BY_DEPTH = 12  # layers up to which a share of the depth is taken
PROBED = 16  # layers that are read out at most
TOKENS, EVERY = 96, 3  # of the text, and which of its positions are read out


@dataclass(frozen=True, slots=True)
class ChosenExit:
    """An exit, and how often its likeliest tokens held the final one where it was probed."""

    layers: int
    matches: Mapping[int, float] | None = None

    def told(self, n_layers: int) -> str:
        """Return the exit as tables show it."""
        return f"{self.layers} of {n_layers}"

    def facts(self) -> dict[str, object]:
        """Return what a run's header keeps of the probe."""
        if self.matches is None:
            return {}
        found = {str(layer): round(share, 4) for layer, share in self.matches.items()}
        return {"exit_probe": {"exit": self.layers, "matches": found}}


def chosen_exit(
    model: StagedModel,
    by_depth: int,
    worth: Callable[[int, float], float],
    *,
    first: int = 1,
    k: int = 1,
) -> ChosenExit:
    """The exit `by_depth` in models of a few layers, in deeper ones that of the highest `worth`.

    Its worth is a function of the exit and the share of tokens found there among the `k`
    likeliest. Of equal ones the earliest is taken.
    """
    if model.n_layers <= BY_DEPTH:
        return ChosenExit(by_depth)
    matches = match_shares(model, first, k)
    return ChosenExit(
        max(matches, key=lambda layer: (worth(layer, matches[layer]), -layer)), matches
    )


def match_shares(model: StagedModel, first: int, k: int) -> dict[int, float]:
    """Measure the share of tokens of a text whose final prediction is there after each layer."""
    import torch

    layers = range(first, model.n_layers)
    stride = -(-len(layers) // PROBED)
    asked = {*layers[::stride], layers[-1], model.n_layers}
    text = model.text[:TOKENS]
    seen: dict[int, Tensor] = {}

    def tap(layer: int, hidden: Tensor) -> None:
        if layer in asked:
            seen[layer] = hidden[:, EVERY - 1 :: EVERY].clone()

    with torch.inference_mode():
        cache, steps = model.new_cache(len(text))
        ids = torch.tensor([text], device=model.device)
        model.forward(ids, steps.prefill(len(text)), cache, tap=tap)
        final = model.logits(seen.pop(model.n_layers)).argmax(-1, keepdim=True)
        best = {layer: model.logits(rows).topk(k, dim=-1).indices for layer, rows in seen.items()}
    return {layer: float((top == final).any(-1).float().mean()) for layer, top in best.items()}
