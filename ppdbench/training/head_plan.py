"""Options of `train heads`: a head for each of some exit layers.

Predictive Pipelined Decoding, Table 4, trains whole matrices; a low-rank change of the model's
own head takes far less memory, and one of the state before it less still where words are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ppdbench.errors import ConfigError
from ppdbench.training.plans import TrainingPlan, option, training_plan

if TYPE_CHECKING:
    from ppdbench.training.heads import HeadsObjective
    from ppdbench.training.run import Material

# Where heads are trained unless layers are named: shares of all layers.
SPREAD = (0.25, 0.5, 0.75)
RANK = 64


def some_exits(n_layers: int) -> list[int]:
    """A few layers, evenly spread, of which none is the last."""
    return sorted({min(n_layers - 1, max(1, round(n_layers * share))) for share in SPREAD})


@training_plan("heads", save_dtype=False, of_states=True, learning_rate=2e-5)
@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsPlan(TrainingPlan):
    """A head for each of some exit layers, everything else frozen.

    Learning rate, batch and schedule are those of Predictive Pipelined Decoding, Table 4. The
    paper trains a whole matrix for each layer (--whole): each takes as much memory as the model's
    own head, and four times as much while it is trained.

    \b
    ppdbench train heads --model ./my-model --text ./corpus.txt --out ./heads --steps 100
    ppdbench train heads --text ./corpus.txt --out ./heads --layers 4,8 --whole --dry-run
    """

    layers: tuple[int, ...] | Literal["all"] = option(
        (),
        "Layers run before each head, as 4,8,12; all: every layer but the last (a quarter, half "
        "and three quarters of the layers).",
    )
    loss: str = option("ce", "ce: the text; kl: the model itself.")
    rank: int | None = option(
        None,
        f"Numbers per token of a head, which is a low-rank change of the model's own ({RANK}).",
    )
    of_state: bool = option(
        False, "Change the state before the head, not the head: far fewer numbers."
    )
    whole: bool = option(
        False,
        "A whole matrix for each head, as in the paper, without the bias that heads may have.",
    )

    def __post_init__(self) -> None:
        if self.whole and self.rank is not None:
            raise ConfigError("--rank is of a low-rank change, --whole a matrix; give one of them")

    def objective(self, model: Any, material: Material, *, compiled: bool) -> HeadsObjective:
        """Heads after the layers asked for."""
        from ppdbench.training.heads import HeadsObjective

        n_layers = int(model.config.num_hidden_layers)
        every = range(1, n_layers) if self.layers == "all" else self.layers
        return HeadsObjective(
            model,
            every or some_exits(n_layers),
            material.job.config.sequence,
            loss=self.loss,
            rank=None if self.whole else RANK if self.rank is None else self.rank,
            of_state=self.of_state,
            compiled=compiled,
        )

    def facts(self, objective: HeadsObjective) -> dict[str, Any]:
        """The layers that were chosen, and a rank only where there is one."""
        layers = [int(name) for name in objective.heads]
        return {
            "layers": layers,
            "loss": objective.loss,
            "rank": objective.rank,
            "of_state": objective.of_state,
        }
