"""The LayerSkip recipe as numbers: how often a layer is dropped, how much an exit counts.

LayerSkip (Elhoushi et al. 2024), sections 4.1 and 4.2. Layers are counted from 0 here, as in
the paper's formulas; t is the step of `total` steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ppdbench.errors import ConfigError, UnknownName

CURRICULA = ("rotational", "gradual", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of one training run.

    `p_max` is the dropout of the last layer, `e_scale` the weight of early exits, `rotation`
    the period R of the rotational curriculum. `ramp` lets dropout grow over the run, as in
    training from scratch. `p_max=0` leaves out layer dropout, `e_scale=None` the early-exit
    loss: the ablations of the paper.
    """

    p_max: float = 0.1
    e_scale: float | None = 0.2
    curriculum: str = "rotational"
    rotation: int = 8
    ramp: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.p_max < 1:
            raise ConfigError(f"p_max={self.p_max}; use a value from 0 up to, not including, 1")
        if self.e_scale is not None and not 0 <= self.e_scale <= 1:
            raise ConfigError(f"e_scale={self.e_scale}; use 0..1")
        if self.curriculum not in CURRICULA:
            raise UnknownName("curriculum", self.curriculum, CURRICULA)
        if self.rotation < 1:
            raise ConfigError(f"rotation={self.rotation}; use 1 or more")

    @property
    def rotates(self) -> bool:
        """True if the rotation decides anything."""
        return self.curriculum == "rotational" and self.e_scale is not None

    def check(self, n_layers: int) -> None:
        """Refuse what does not fit a model of `n_layers`."""
        if self.rotates:
            limit = max(1, n_layers - 1)
            if self.rotation > limit:
                raise ConfigError(
                    f"rotation={self.rotation}, but this model has {n_layers} layers; "
                    f"use 1..{limit}"
                )

    def dropout(self, layer: int, n_layers: int, t: int, total: int) -> float:
        """The probability that a sample skips `layer` at step `t`: S(t) D(l) p_max."""
        depth = 0.0 if n_layers < 2 else 2 ** (layer / (n_layers - 1)) - 1
        return self._growth(t, total) * depth * self.p_max

    def _growth(self, t: int, total: int) -> float:
        if not self.ramp or total < 2:
            return 1.0
        return math.exp(t * math.log(2) / (total - 1)) - 1

    def exits(self, n_layers: int, t: int, total: int) -> dict[int, float]:
        """The layers whose exits count at step `t`, and their weights, which sum to 1.

        The last layer is always among them: with a pure rotation of R = L-1 some steps would
        otherwise train no final exit at all.
        """
        last = n_layers - 1
        if self.e_scale is None:
            return {last: 1.0}
        weights = {
            layer: self.exit_scale(layer, n_layers)
            for layer in range(n_layers)
            if layer == last or self._counts(layer, n_layers, t, total)
        }
        sum_of_all = sum(weights.values())
        return {layer: w / sum_of_all for layer, w in weights.items() if w > 0}

    def _counts(self, layer: int, n_layers: int, t: int, total: int) -> bool:
        if self.curriculum == "rotational":
            return layer % self.rotation == t % self.rotation
        if self.curriculum == "gradual":
            return layer >= n_layers - 1 - 2 * n_layers * t // max(1, total)
        return True

    def exit_scale(self, layer: int, n_layers: int) -> float:
        """e(l): quadratic in depth, the last layer's on top of what all before it have."""
        scale = self.e_scale or 0.0
        if layer < n_layers - 1:
            return scale * layer * (layer + 1) / 2
        if n_layers == 1:
            return 1.0
        return (n_layers - 1) + scale * (n_layers - 2) * (n_layers - 1) / 2


@dataclass(frozen=True, slots=True)
class Preset:
    """A setting of the paper: the recipe, its learning rates, and how much it saw.

    `batch_size` counts the sequences of a step on all of the paper's devices. Without layer
    dropout the paper trains more gently.
    """

    recipe: Recipe
    learning_rate: float
    rate_without_dropout: float
    steps: int
    batch_size: int
    sequence: int
    what: str

    def rate(self, recipe: Recipe) -> float:
        """The learning rate for a recipe that was made of this one."""
        return self.learning_rate if recipe.p_max > 0 else self.rate_without_dropout


PRESETS = {
    "continual-7b": Preset(
        *(Recipe(), 3e-5, 3e-5, 50_000, 256, 4096),
        "continual pretraining, Llama 2 7B",
    ),
    "continual-13b": Preset(
        *(Recipe(e_scale=0.1, rotation=39), 2e-5, 2e-5, 50_000, 256, 4096),
        "continual pretraining, Llama 2 13B",
    ),
    "scratch-1.5b": Preset(
        *(Recipe(rotation=23, ramp=True), 8e-4, 4e-4, 50_000, 128, 4096),
        "from scratch, 1.5B",
    ),
    "scratch-7b": Preset(
        *(Recipe(p_max=0.2, rotation=31, ramp=True), 8e-4, 3e-4, 50_000, 128, 4096),
        "from scratch, Llama 2 7B",
    ),
    "code-7b": Preset(
        *(Recipe(e_scale=1.0, rotation=16), 1e-4, 1e-4, 10_000, 128, 2048),
        "finetuning on code, Llama 1 7B",
    ),
    "topv2-1.5b": Preset(
        *(Recipe(p_max=0.2, e_scale=1.0, curriculum="gradual"), 1e-4, 1e-4, 5_800, 256, 4096),
        "finetuning on TOPv2, 1.5B",
    ),
}


def within_depth(recipe: Recipe, n_layers: int) -> Recipe:
    """The recipe with its rotation, if it has one, brought within a shallower model's reach."""
    if not recipe.rotates:
        return recipe
    return replace(recipe, rotation=min(recipe.rotation, max(1, n_layers - 1)))
