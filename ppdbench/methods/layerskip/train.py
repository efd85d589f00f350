"""Training a model so that its early layers can already read out: LayerSkip.

Samples skip layers more often the deeper these are, and exits before the last one enter the
loss through the shared norm and head. Inference is that of any other model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ppdbench.methods.layerskip.recipe import Recipe
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import ExitQuality, by_layer
from ppdbench.training.layers import TrainedLayers
from ppdbench.training.marks import picked, places, unmarked
from ppdbench.training.objective import Objective

Losses = dict[str, Tensor]


class LayerSkipObjective(Objective):
    """The loss of one step; the module whose parameters are trained."""

    varies = True

    def __init__(
        self, model: Any, recipe: Recipe, sequence: int, seed: int, *, compiled: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.seed = seed
        self.layers = TrainedLayers(model, sequence, compiled=compiled)
        recipe.check(self.layers.n_layers)

    def forward(self, blocks: Tensor, t: int, total: int) -> Losses:
        """Losses of `blocks` [batch, length]: `loss` to minimise, `last` and `exits` to watch."""
        tokens, learned = unmarked(blocks)
        inputs, chosen = tokens[:, :-1], places(learned, 0)
        follow = picked(tokens[:, 1:], chosen)
        layers, step = self.layers, self.layers.step(inputs.shape[1])
        exits = self.recipe.exits(layers.n_layers, t, total)
        seed = self.seed * 1_000_003 + t + self.first_row * 7_368_787
        draw = torch.Generator().manual_seed(seed)
        hidden = layers.embed(inputs, step)
        weighted = []
        for index in range(layers.n_layers):
            hidden = layers.layer(
                index, hidden, step, self._kept(index, len(blocks), t, total, draw)
            )
            if index in exits:
                found = layers.loss(picked(hidden, chosen), follow)
                weighted.append(exits[index] * found)
        early = [w.detach() / exits[i] for w, i in zip(weighted, exits, strict=True)][:-1]
        parts = {"loss": torch.stack(weighted).sum(), "last": found.detach()}
        if early:
            parts["exits"] = torch.stack(early).mean()
        return parts

    def _kept(
        self, index: int, batch: int, t: int, total: int, draw: torch.Generator
    ) -> Tensor | None:
        """The samples that pass this layer; None if all do.

        Drawn from the step and the place in the share alone, so that every process drops as many
        samples as the others.
        """
        p = self.recipe.dropout(index, self.layers.n_layers, t, total)
        if p <= 0 or not self.training:
            return None
        kept = (torch.rand(batch, generator=draw) >= p).nonzero()[:, 0]
        return None if len(kept) == batch else kept.to(self.layers.adapter.device)

    def quality(
        self, ids: npt.NDArray[Any], sequence: int, watch: Report = silent
    ) -> list[ExitQuality]:
        """Measure every exit, through the shared head."""
        return by_layer(self.model, ids, sequence, watch=watch)

    def save(self, folder: Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        """Write an ordinary transformers folder."""
        self.model.to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self.model.float()  # what is measured from here on are the weights that were saved
