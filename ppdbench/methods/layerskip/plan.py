"""Options of `train layerskip`: a setting of the paper, and what to change of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ppdbench.errors import ConfigError, UnknownName
from ppdbench.methods.layerskip.recipe import PRESETS, Preset, Recipe, within_depth
from ppdbench.training.plans import WholePlan, option, training_plan

if TYPE_CHECKING:
    from ppdbench.methods.layerskip.train import LayerSkipObjective
    from ppdbench.training.run import Material

CHANGED = ("p_max", "e_scale", "curriculum", "rotation", "ramp")  # of the recipe, by options


@training_plan("layerskip")
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkipPlan(WholePlan):
    """Train a model whose early layers can already read out.

    Afterwards every exit is measured on --held-out text and on each --task.

    \b
    ppdbench train layerskip --model ./my-model --text ./corpus.txt --out ./skipping --steps 100
    ppdbench train layerskip --shape layers=8,hidden=256,vocab=4096 --text ./corpus --out ./new
    """

    preset: str | None = option(
        None,
        "A setting of the paper, such as continual-7b or scratch-1.5b: its recipe and learning "
        "rate, and its --steps, --batch-size and --sequence.",
        first=True,
    )
    shape: str | None = option(
        None,
        "Train from scratch: layers=8,hidden=256,vocab=4096,...",
        metavar="SPEC",
        first=True,
    )
    p_max: float | None = option(None, "Layer dropout of the last layer; 0 leaves it out.")
    e_scale: float | None = option(None, "Weight of early exits.")
    no_early_exit_loss: bool = option(False, "Only the last layer's loss.")
    curriculum: str | None = option(None, "rotational, gradual or none.")
    rotation: int | None = option(None, "Period R of the rotational curriculum.")
    ramp: bool | None = option(None, "Let dropout grow over the run.")

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise UnknownName("preset", self.preset, PRESETS)
        if self.no_early_exit_loss and self.e_scale is not None:
            raise ConfigError(
                "--e-scale is of a loss that --no-early-exit-loss leaves out; give one of them"
            )
        self.usual()  # refuses a recipe that there is not

    @property
    def setting(self) -> Preset:
        """The paper's setting that was asked for, or the one nearest to what is trained."""
        usual = "continual-7b" if self.shape is None else "scratch-1.5b"
        return PRESETS[usual if self.preset is None else self.preset]

    @property
    def recipe(self) -> Recipe:
        """The setting's recipe with what was asked for otherwise."""
        asked = {name: getattr(self, name) for name in CHANGED}
        changes = {name: value for name, value in asked.items() if value is not None}
        if self.no_early_exit_loss:
            changes["e_scale"] = None
        return replace(self.setting.recipe, **changes)

    def usual(self) -> Mapping[str, Any]:
        """The setting's learning rate, and how much is trained where a preset was asked for."""
        rate = {"learning_rate": self.setting.rate(self.recipe)}
        if self.preset is None:
            return rate
        return rate | {n: getattr(self.setting, n) for n in ("steps", "batch_size", "sequence")}

    def objective(self, model: Any, material: Material, *, compiled: bool) -> LayerSkipObjective:
        """The recipe; a rotation that nobody asked for is shortened to suit the model."""
        from ppdbench.methods.layerskip.train import LayerSkipObjective

        config, recipe = material.job.config, self.recipe
        if self.rotation is None:
            recipe = within_depth(recipe, int(model.config.num_hidden_layers))
        return LayerSkipObjective(model, recipe, config.sequence, config.seed, compiled=compiled)

    def facts(self, objective: LayerSkipObjective) -> dict[str, Any]:
        """The recipe alone, whatever setting it came from."""
        return {"recipe": asdict(objective.recipe)}

    def notes(self, objective: LayerSkipObjective) -> Sequence[str]:
        """A line about a rotation that was shortened."""
        ours, asked = objective.recipe.rotation, self.recipe.rotation
        if ours == asked:
            return ()
        return (f"note: rotation {ours} in place of {asked}, which is for more layers",)

    def scored_with(self, n_layers: int) -> Sequence[str]:
        """Every exit, and the whole model."""
        return (*(f"early-exit:exit_layer={n}" for n in range(1, n_layers)), "greedy")
