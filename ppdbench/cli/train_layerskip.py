"""`ppdbench train layerskip`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.cli import completion
from ppdbench.cli.common import model_spec, notice, stand_in_note
from ppdbench.cli.help import Command
from ppdbench.cli.options import model_options
from ppdbench.cli.training import FIRST, carry_out, job_of, print_plan, training_options
from ppdbench.report.progress import progress

if TYPE_CHECKING:
    from ppdbench.bench.runner import DecodeConfig
    from ppdbench.training.recipe import Recipe


@click.command("layerskip", cls=Command, first=("preset", "shape", *FIRST[:-2]))
@click.option(
    "--preset",
    help="A setting of the paper, such as continual-7b or scratch-1.5b: its recipe and learning "
    "rate, and its --steps, --batch-size and --sequence.",
)
@click.option(
    "--shape", metavar="SPEC", help="Train from scratch: layers=8,hidden=256,vocab=4096,..."
)
@click.option("--p-max", type=float, help="Layer dropout of the last layer; 0 leaves it out.")
@click.option("--e-scale", type=float, help="Weight of early exits.")
@click.option("--no-early-exit-loss", is_flag=True, help="Only the last layer's loss.")
@click.option("--curriculum", help="rotational, gradual or none.")
@click.option("--rotation", type=int, help="Period R of the rotational curriculum.")
@click.option("--ramp/--no-ramp", default=None, help="Let dropout grow over the run.")
@click.option(
    "--save-dtype", default="float32", show_default=True, help="Type of the saved weights."
)
@click.option("--task", "tasks", multiple=True, help="Task to score every exit on afterwards.")
@click.option(
    "--data",
    default="hub",
    show_default=True,
    shell_complete=completion.data,
    help="Data of the tasks: hub, builtin or a path.",
)
@click.option("--limit", type=int, help="Use the first N examples of each task (all).")
@training_options
@model_options
def command(preset: str | None, shape: str | None, save_dtype: str, **options: Any) -> int:
    """Train a model whose early layers can already read out.

    Afterwards every exit is measured on --held-out text and on each --task.

    \b
    ppdbench train layerskip --model ./my-model --text ./corpus.txt --out ./skipping --steps 100
    ppdbench train layerskip --shape layers=8,hidden=256,vocab=4096 --text ./corpus --out ./new
    """
    from ppdbench.errors import ConfigError
    from ppdbench.training import run

    dtype = run.saved_dtype(save_dtype)
    fit = options["rotation"] is None
    recipe, rate = _recipe(preset, scratch=shape is not None, options=options)
    tasks, data, limit = (options.pop(name) for name in ("tasks", "data", "limit"))
    if not tasks and (limit is not None or data != "hub"):
        raise ConfigError("--data and --limit are for what is scored afterwards; add --task")
    job, resume, dry = job_of(options, learning_rate=rate)
    scoring = _Scoring(job.out, tasks, data, limit, options["device"]) if tasks else None
    if scoring is not None:
        scoring.check()
    if shape is None:
        asked = options["model"]
        training = run.layerskip(model_spec(options), recipe, job, fit=fit)
        stand_in_note(asked)
    else:
        from ppdbench.engine.shapes import parse

        if options["model"]:
            raise ConfigError("--shape trains from scratch, --model goes on; give one of them")
        scratch = parse(shape)
        training = run.layerskip_from_scratch(scratch, options["device"], recipe, job, fit=fit)
    rotation = training.facts["recipe"]["rotation"]
    if rotation != recipe.rotation:
        notice(f"note: rotation {rotation} in place of {recipe.rotation}, which is for more layers")
    if dry:
        return print_plan(training)
    carry_out(
        training,
        resume,
        lambda trained: run.save_model(trained, training.tokenizer, job.out, dtype),
    )
    if scoring is not None and training.is_main:
        scoring.carry_out()
    return 0


@dataclass(frozen=True, slots=True)
class _Scoring:
    """The quality of outputs read out after each layer, as a run folder beside the model."""

    model: Path
    tasks: tuple[str, ...]
    data: str
    limit: int | None
    device: str

    def check(self) -> None:
        """Read the examples once before the training, after which a wrong name would be late."""
        from ppdbench.runs.workload import Workload

        Workload.read(self._config(("greedy",)))

    def carry_out(self) -> None:
        from ppdbench.bench.runner import run_decode
        from ppdbench.bench.summary import summarize
        from ppdbench.bench.sums import add_up
        from ppdbench.report import decode_tables
        from ppdbench.report.export import emit
        from ppdbench.runs.running import Destination

        layers = json.loads((self.model / "config.json").read_text("utf-8"))["num_hidden_layers"]
        exits = [f"early-exit:exit_layer={n}" for n in range(1, layers)]
        config = self._config((*exits, "greedy"))
        with progress() as report:
            out = self.model / "exits"
            begun = (out / "run.json").is_file()
            to = Destination(out=out, resume=begun, report=report)
            scored = run_decode(config, to, kind="bench")
        found = summarize(scored.header, add_up(scored.samples))
        emit([decode_tables.quality(found)], None, "table")
        notice(f"run: {scored.path}")

    def _config(self, methods: tuple[str, ...]) -> DecodeConfig:
        from ppdbench.bench.runner import Choice, DecodeConfig
        from ppdbench.engine.loading import ModelSpec

        return DecodeConfig(
            model=ModelSpec(name=str(self.model.absolute()), device=self.device),
            tasks=self.tasks,
            data=self.data,
            limit=self.limit,
            methods=tuple(map(Choice.parse, methods)),
            warmup=0,
        )


def _recipe(preset: str | None, *, scratch: bool, options: dict[str, Any]) -> tuple[Recipe, float]:
    """The preset's recipe with what was asked for otherwise, and its learning rate.

    How much is trained follows the preset only where one was asked for.
    """
    from ppdbench.errors import UnknownName
    from ppdbench.training.recipe import PRESETS

    usual = "scratch-1.5b" if scratch else "continual-7b"
    name = usual if preset is None else preset
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    changes = {
        option: value
        for option in ("p_max", "e_scale", "curriculum", "rotation", "ramp")
        if (value := options.pop(option)) is not None
    }
    if options.pop("no_early_exit_loss"):
        changes["e_scale"] = None
    chosen = PRESETS[name]
    if preset:
        if options["steps"] is None and options["epochs"] is None:
            options["steps"] = chosen.steps
        for option in ("batch_size", "sequence"):
            if click.get_current_context().get_parameter_source(option) is ParameterSource.DEFAULT:
                options[option] = getattr(chosen, option)
    recipe = replace(chosen.recipe, **changes)
    return recipe, chosen.rate(recipe)
