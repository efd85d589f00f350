"""`ppdbench train eagle`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from ppdbench.cli.common import model_spec, stand_in_note
from ppdbench.cli.help import Command
from ppdbench.cli.options import model_options
from ppdbench.cli.training import (
    FIRST,
    carry_out,
    job_of,
    print_plan,
    save_dtype_option,
    training_options,
)


@click.command("eagle", cls=Command, first=FIRST)
@click.option(
    "--version", type=int, default=3, show_default=True, help="1 (also for EAGLE-2's trees) or 3."
)
@click.option(
    "--passes", type=int, help="How far it reads its own guesses in training (1: 1, 3: 5)."
)
@click.option(
    "--draft-vocab",
    type=int,
    default=0,
    show_default=True,
    help="Version 3: a head over so many of the commonest tokens; 0: the model's head.",
)
@click.option(
    "--rank",
    type=int,
    default=0,
    show_default=True,
    help="Version 3: low-rank change of the model's head; 0: that head as it is.",
)
@click.option("--ffn", type=int, default=0, show_default=True, help="Width of its MLP; 0: as wide.")
@click.option(
    "--loss",
    default="kl",
    show_default=True,
    help="kl: the model's own distribution; ce: its likeliest token.",
)
@click.option(
    "--decay", type=float, default=0.8, show_default=True, help="Of the weight, pass by pass."
)
@click.option("--noise", type=float, help="Half the width of the noise on features (1: 0.1, 3: 0).")
@save_dtype_option
@training_options
@model_options
def command(save_dtype: str | None, **options: Any) -> int:
    """A network of one layer that continues the model's features, everything else frozen.

    Afterwards its guesses are measured on --held-out text, by distance.

    \b
    ppdbench train eagle --model ./my-model --text ./corpus.txt --out ./eagle --steps 100
    ppdbench train eagle --text ./corpus.txt --out ./eagle --version 1 --ffn 512 --dry-run
    """
    from ppdbench.methods.eagle.train import EaglePlan
    from ppdbench.training import run

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = EaglePlan(**{f.name: options.pop(f.name) for f in fields(EaglePlan)})
    job, resume, dry = job_of(options, learning_rate=3e-5)
    asked = options["model"]
    training = run.eagle(model_spec(options), plan, job)
    stand_in_note(asked)
    if dry:
        return print_plan(training)
    return carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )
