"""`ppdbench train layerskip`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import model_spec, notice, progress, stand_in_note
from ppdbench.cli.options import model_options
from ppdbench.cli.training import carry_out, job_of, print_plan, training_options

if TYPE_CHECKING:
    from ppdbench.training.recipe import Recipe


@click.command("layerskip")
@click.option("--preset", help="A setting of the paper, such as continual-7b or scratch-1.5b.")
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
@click.option("--data", default="hub", show_default=True, help="Data of the tasks, as in decode.")
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
    from ppdbench.training import run

    dtype = run.saved_dtype(save_dtype)
    recipe, rate = _recipe(preset, scratch=shape is not None, options=options)
    tasks, data, limit = (options.pop(name) for name in ("tasks", "data", "limit"))
    job, resume, dry = job_of(options, learning_rate=rate)
    if shape is None:
        asked = options["model"]
        training = run.layerskip(model_spec(options), recipe, job)
        stand_in_note(asked)
    else:
        from ppdbench.engine.shapes import parse
        from ppdbench.errors import ConfigError

        if options["model"]:
            raise ConfigError("--shape trains from scratch, --model goes on; give one of them")
        training = run.layerskip_from_scratch(parse(shape), options["device"], recipe, job)
    if dry:
        return print_plan(training)
    carry_out(
        training,
        resume,
        lambda trained: run.save_model(trained, training.tokenizer, job.out, dtype),
    )
    if tasks and training.is_main:
        _score_exits(job.out, tasks, data, limit, options["device"])
    return 0


def _score_exits(
    model: Path, tasks: tuple[str, ...], data: str, limit: int | None, device: str
) -> None:
    """The quality of outputs read out after each layer, as a run folder beside the model."""
    from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
    from ppdbench.bench.summary import summarize
    from ppdbench.bench.sums import add_up
    from ppdbench.engine.loading import ModelSpec
    from ppdbench.report import decode_tables
    from ppdbench.report.export import emit

    layers = json.loads((model / "config.json").read_text("utf-8"))["num_hidden_layers"]
    exits = [Choice(name="early-exit", options={"exit_layer": str(n)}) for n in range(1, layers)]
    config = DecodeConfig(
        model=ModelSpec(name=str(model.absolute()), device=device),
        tasks=tasks,
        data=data,
        limit=limit,
        methods=(*exits, Choice(name="greedy")),
        warmup=0,
    )
    with progress() as report:
        scored = run_decode(config, model / "exits", kind="bench", resume=False, report=report)
    found = summarize(scored.header, add_up(scored.samples))
    emit([decode_tables.quality(found)], None, "table")
    notice(f"run: {scored.path}")


def _recipe(preset: str | None, *, scratch: bool, options: dict[str, Any]) -> tuple[Recipe, float]:
    """The preset's recipe with what was asked for otherwise, and its learning rate."""
    from ppdbench.errors import UnknownName
    from ppdbench.training.recipe import PRESETS

    name = preset or ("scratch-1.5b" if scratch else "continual-7b")
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    changes = {
        option: value
        for option in ("p_max", "e_scale", "curriculum", "rotation", "ramp")
        if (value := options.pop(option)) is not None
    }
    if options.pop("no_early_exit_loss"):
        changes["e_scale"] = None
    return replace(PRESETS[name].recipe, **changes), PRESETS[name].learning_rate
