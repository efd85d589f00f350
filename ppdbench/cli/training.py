"""Options and course that all kinds of `ppdbench train` share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.cli.common import notice
from ppdbench.cli.options import stack, text_options
from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError, DataError, one_line
from ppdbench.files.paths import check_folder
from ppdbench.files.whole import write_whole
from ppdbench.report.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ppdbench.training.objective import Objective
    from ppdbench.training.run import Job, Training

FIRST = (
    *("text", "model", "out", "held_out", "steps", "epochs", "batch_size", "sequence"),
    *("learning_rate", "dry_run"),
)

training_options = stack(
    text_options,
    click.option("--held-out", multiple=True, help="Text to measure the result on."),
    click.option(
        "--held-out-tokens",
        type=int,
        default=65536,
        show_default=True,
        help="Measure on its first N tokens; 0: on all of them.",
    ),
    click.option(
        "--learn-from",
        default="answers",
        show_default=True,
        help="Of lines that say where their answer begins: answers, or all.",
    ),
    click.option("--out", required=True, metavar="DIR", help="Folder for everything written."),
    click.option("--resume", is_flag=True, help="Continue from the newest checkpoint in --out."),
    click.option("--steps", type=int, help="Optimizer steps; instead of --epochs."),
    click.option("--epochs", type=float, help="Passes over the text (3)."),
    click.option(
        "--batch-size", type=int, default=128, show_default=True, help="Sequences per step."
    ),
    click.option("--micro-batch", type=int, help="Sequences at once on a device (all of them)."),
    click.option(
        "--sequence", type=int, default=2048, show_default=True, help="Tokens per sequence."
    ),
    click.option("--learning-rate", type=float, help="Peak learning rate (what suits the parts)."),
    click.option("--schedule", default="cosine", show_default=True, help="cosine or constant."),
    click.option("--warmup-ratio", type=float, default=0.04, show_default=True),
    click.option("--weight-decay", type=float, default=0.0, show_default=True),
    click.option("--beta2", type=float, default=0.999, show_default=True, help="Of AdamW."),
    click.option("--clip", type=float, help="Largest gradient norm (no limit)."),
    click.option("--precision", default="no", show_default=True, help="no, bf16 or fp16."),
    click.option("--compile", is_flag=True, help="Compile the model: a slow start, faster steps."),
    click.option("--checkpoint-every", type=int, default=200, show_default=True, help="Steps."),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--dry-run", is_flag=True, help="Only say what it would do, need and take."),
)

states_option = click.option(
    "--states",
    metavar="DIR",
    help="Keep the frozen model's states of the text here, for later epochs and trainings.",
)
save_dtype_option = click.option("--save-dtype", help="Type of the saved weights (the model's).")


def fill_in(options: dict[str, Any], usual: Mapping[str, Any]) -> None:
    """Give options that the command line leaves open the values that are usual."""
    where = click.get_current_context().get_parameter_source
    for name, value in usual.items():
        open_one = where(name) is ParameterSource.DEFAULT
        if open_one and not (name == "steps" and options["epochs"] is not None):
            options[name] = value


def job_of(options: dict[str, Any]) -> tuple[Job, bool, bool]:
    """The options that every kind of training shares, taken out of `options`."""
    from ppdbench.machine.environment import set_threads
    from ppdbench.training.run import Job
    from ppdbench.training.text import TextSpec, check_sources, in_both
    from ppdbench.training.trainer import TrainConfig

    quiet()
    set_threads(options["threads"])
    take = options.pop
    steps, epochs = take("steps"), take("epochs")
    if steps is not None and epochs is not None:
        raise ConfigError("--steps and --epochs exclude each other")
    if epochs is not None and not 0 < epochs < math.inf:
        raise ConfigError(f"--epochs {epochs}: use a number above 0")
    text = {
        "split": take("split_by"),
        "column": take("column"),
        "max_documents": take("max_documents"),
        "learn": take("learn_from"),
        "offline": options["offline"],
    }
    out = check_folder("--out", take("out"))
    if options["resume"] and not out.is_dir():
        raise ConfigError(f"{out} holds no training run, so nothing to resume; drop --resume")
    held_out = take("held_out")
    names = ["batch_size", "micro_batch", "sequence", "learning_rate", "schedule", "warmup_ratio"]
    names += ["weight_decay", "beta2", "clip", "seed", "precision", "compile", "checkpoint_every"]
    config = TrainConfig(
        steps=1 if steps is None else steps, **{name: take(name) for name in names}
    )
    job = Job(
        text=TextSpec(sources=take("text"), **text),
        held_out=TextSpec(sources=held_out, **text) if held_out else None,
        config=config,
        epochs=None if steps is not None else epochs or 3,
        out=out,
        held_out_tokens=take("held_out_tokens"),
        states=_states_folder(options),
    )
    for source in filter(None, (job.text, job.held_out)):
        check_sources(source)
    if job.held_out is not None and (same := in_both(job.held_out, job.text)):
        notice(
            f"note: {', '.join(same)} is trained on and measured on, so that the result says "
            "nothing of other text; give --held-out text of its own"
        )
    return job, take("resume"), take("dry_run")


def _states_folder(options: dict[str, Any]) -> Path | None:
    """The folder to keep states in; None if there is none, or the training reads more."""
    states = options.pop("states", None)
    return None if states is None else check_folder("--states", states)


def print_forecast(training: Training) -> int:
    from ppdbench.report.export import emit
    from ppdbench.report.training_tables import forecast_sheet

    if training.is_main:
        notice(f"note: measuring what a step needs; the text's tokens are in {training.job.out}")
    forecast = training.forecast()
    if not training.is_main:
        return 0
    emit([forecast_sheet(forecast)], asdict(forecast), "table")
    if forecast.short is not None:
        notice(f"note: {forecast.short}")
    return 0


def _save(trained: Objective, training: Training, dtype: torch.dtype | None) -> None:
    from safetensors import SafetensorError

    out = training.job.out
    try:
        trained.save(out, training.tokenizer, dtype)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"cannot write what was trained to {out}: {one_line(error)}; its last checkpoint is "
            "kept, make room and repeat the command with --resume"
        ) from error


def _say_what_was_left(training: Training) -> None:
    every, measured = training.held_out, training.measured_on
    if every is not None and measured is not None and len(measured) < len(every):
        notice(
            f"note: measured on the first {len(measured):,} of {len(every):,} held-out tokens; "
            "--held-out-tokens 0 takes all"
        )


def carry_out(training: Training, resume: bool, dtype: torch.dtype | None) -> int:
    """Train, save in this type or else the model's, and say what it was worth."""
    from ppdbench.report.export import emit
    from ppdbench.report.pictures.files import save_picture
    from ppdbench.report.pictures.training import training_curves
    from ppdbench.report.training_tables import quality_sheet
    from ppdbench.training.record import read_log
    from ppdbench.training.trainer import LOG

    out = training.job.out
    with progress() as report:
        trained = training.carry_out(resume=resume, watch=report)
    if training.is_main:
        _save(trained, training, dtype)  # before anything that takes long or may fail
    with progress() as report:
        quality = training.quality(report)
    if not training.is_main:
        return 0
    lines = read_log(out / LOG)
    if lines:
        save_picture(training_curves(lines), out / "loss.png")
    if quality:
        measured = [asdict(one) for one in quality]
        write_whole(out / "quality.json", json.dumps(measured, indent=2) + "\n")
        emit([quality_sheet(quality)], None, "table")
        _say_what_was_left(training)
    if lines:
        notice(f"picture: {out / 'loss.png'}")
    notice(f"written: {out}")
    return 0
