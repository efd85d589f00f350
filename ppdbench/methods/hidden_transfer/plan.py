"""Options of `train hidden-transfer`: where each step transfers, and what it is trained with.

kl is the divergence of the guess from the model's own distribution, reverse-kl its other
direction, which is how the paper writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ppdbench.errors import ConfigError
from ppdbench.training.plans import GoingOn, option, training_plan

if TYPE_CHECKING:
    from ppdbench.methods.hidden_transfer.train import TransferObjective
    from ppdbench.training.run import Material

LOSSES = ("kl", "reverse-kl")
TRUE, CHAINED, MASKED = MASKS = ("teacher-forced", "chained", "masked")
SPACING = (15 / 32, 20 / 32, 25 / 32)  # the paper's layers in a model of 32


@training_plan("hidden-transfer", learning_rate=1e-3)
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan(GoingOn):
    """Matrices that put states of tokens ahead, everything else frozen.

    They are trained one after another, each for --steps or --epochs. Afterwards the guesses are
    measured on --held-out text, by distance. With --compare each candidate is written to a folder
    layer-N in --out, to be measured like any other.

    \b
    ppdbench train hidden-transfer --model ./my-model --text ./corpus.txt --out ./ht --steps 100
    ppdbench train hidden-transfer --text ./corpus.txt --out ./first --compare 2,3,4,5,6
    ppdbench train hidden-transfer --text ./corpus.txt --out ./second --layers 4 --compare 4,5,6
    """

    method: ClassVar[str] = "hidden-transfer"

    layers: tuple[int, ...] = option(
        (), "Layers run before each step: 4,5,6 (about 1/2, 5/8 and 3/4)."
    )
    compare: tuple[int, ...] = option(
        (), "Train the step after these once after each layer: 3,4,5.", metavar="LAYERS"
    )
    mask: str = option(
        TRUE, "What a pseudo state sees of what lies between: teacher-forced, chained or masked."
    )
    loss: str = option("kl", "kl or reverse-kl: the model itself.")
    start: str | None = option(
        None, "Go on from the matrices for these layers; of those to compare none.", metavar="DIR"
    )

    def __post_init__(self) -> None:
        for name, known in (("mask", MASKS), ("loss", LOSSES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"--{name} {getattr(self, name)!r}: use {', '.join(known)}")
        if len(set(self.compare)) < len(self.compare):
            raise ConfigError("--compare names a layer twice")

    def settled(self, n_layers: int) -> TransferPlan:
        """Choose layers that suit a model of so many, if none were given; refuse others."""
        from ppdbench.methods.hidden_transfer.network import check_layers

        layers = self.layers
        if not layers and not self.compare:
            layers = tuple(min(n_layers - 1, max(1, round(n_layers * s))) for s in SPACING)
        plan = replace(self, layers=layers)
        for steps in plan.jobs:
            check_layers(steps, n_layers)
        return plan

    @property
    def jobs(self) -> list[tuple[int, ...]]:
        """The layers of the steps up to its own, for each matrix to be trained."""
        steps = [self.layers[: i + 1] for i in range(len(self.layers))]
        return steps + [(*self.layers, candidate) for candidate in self.compare]

    @property
    def phases(self) -> int:
        """The number of matrices."""
        return len(self.jobs)

    def objective(self, model: Any, material: Material, *, compiled: bool) -> TransferObjective:
        """The matrices, each of which starts as the identity."""
        from ppdbench.methods.hidden_transfer.train import TransferObjective

        return TransferObjective(model, self, material.job.config.sequence, compiled=compiled)
