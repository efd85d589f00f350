"""Options of `train after-next`. Imports torch only inside functions, so that --help is instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdbench.errors import ConfigError
from ppdbench.training.plans import LOSSES, TrainingPlan, option, training_plan

if TYPE_CHECKING:
    from ppdbench.training.run import Material
    from ppdbench_repeat.after_next.train import AfterNextObjective


@training_plan("after-next", learning_rate=1e-3)
@dataclass(frozen=True, slots=True, kw_only=True)
class AfterNextPlan(TrainingPlan):
    """A matrix that guesses the token after the next one, everything else frozen.

    \b
    ppdbench train after-next --model ./my-model --text ./corpus.txt --out ./after --steps 100
    """

    loss: str = option("kl", "kl: the model itself; ce: the text.")

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError(f"--loss {self.loss!r}: use {' or '.join(LOSSES)}")

    def objective(self, model: Any, material: Material, *, compiled: bool) -> AfterNextObjective:
        """The matrix, around a model that may have no weights yet."""
        from ppdbench_repeat.after_next.train import AfterNextObjective

        return AfterNextObjective(model, self, material.job.config.sequence, compiled=compiled)
