"""Options of `train medusa`: what is trained, and towards what.

Heads that read the state after fewer layers are the early exits that hidden transfer is
compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ppdbench.errors import ConfigError
from ppdbench.training.plans import (
    GoingOn,
    check_decay,
    check_loss,
    option,
    training_plan,
)

if TYPE_CHECKING:
    from ppdbench.methods.medusa.train import MedusaObjective
    from ppdbench.training.run import Material


@training_plan("medusa", of_states=True, learning_rate=1e-3)
@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaPlan(GoingOn):
    """Heads that guess the tokens after the next one, everything else frozen.

    Afterwards the guesses are measured on --held-out text, by distance.

    \b
    ppdbench train medusa --model ./my-model --text ./corpus.txt --out ./medusa --steps 100
    ppdbench train medusa --text ./corpus.txt --out ./medusa --heads 4 --rank 32 --dry-run
    """

    method: ClassVar[str] = "medusa"

    heads: int = option(5, "Tokens guessed ahead.")
    layers: int = option(1, "Residual blocks per head.")
    after: int = option(
        0,
        "Layers run before the state that heads read (all); fewer: early exits, to compare with.",
        shown=False,
    )
    rank: int | None = option(
        None,
        "Low-rank change of the model's head instead of a matrix per head; 0: that head as it is.",
    )
    draft_vocab: int = option(0, "Guess among so many of the commonest tokens; 0: among all.")
    loss: str = option("kl", "kl: the model itself; ce: the text.")
    decay: float = option(0.8, "Of the weight, head by head.")
    start: str | None = option(
        None, "Go on from these heads and their draft vocabulary.", metavar="DIR"
    )

    def __post_init__(self) -> None:
        least = {"heads": 1, "layers": 0, "after": 0, "rank": 0, "draft_vocab": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: use {lowest} or more")
        if self.layers == self.rank == 0:
            raise ConfigError("--layers 0 --rank 0 leaves nothing to train; raise one of them")
        check_loss(self.loss)
        check_decay(self.decay)

    def objective(self, model: Any, material: Material, *, compiled: bool) -> MedusaObjective:
        """The heads, each of which starts as the model's own."""
        from ppdbench.methods.medusa.train import MedusaObjective

        sequence, words = material.job.config.sequence, material.commonest(self.draft_vocab)
        return MedusaObjective(model, self, sequence, words=words, compiled=compiled)
