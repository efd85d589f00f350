"""`ppdbench train hidden-transfer`."""

from __future__ import annotations

from typing import Any

import click

from ppdbench.cli.common import model_spec, numbers, stand_in_note
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


@click.command("hidden-transfer", cls=Command, first=FIRST)
@click.option("--layers", help="Layers run before each step: 4,5,6 (about 1/2, 5/8 and 3/4).")
@click.option(
    "--compare", metavar="LAYERS", help="Train the step after these once after each layer: 3,4,5."
)
@click.option(
    "--mask",
    default="teacher-forced",
    show_default=True,
    help="What a pseudo state sees of what lies between: teacher-forced, chained or masked.",
)
@click.option("--loss", default="kl", show_default=True, help="kl or reverse-kl: the model itself.")
@save_dtype_option
@training_options
@model_options
def command(layers: str | None, compare: str | None, save_dtype: str | None, **options: Any) -> int:
    """Matrices that put states of tokens ahead, everything else frozen.

    They are trained one after another, each for --steps or --epochs. Afterwards the guesses are
    measured on --held-out text, by distance. With --compare each candidate is written to a folder
    layer-N in --out, to be measured like any other.

    \b
    ppdbench train hidden-transfer --model ./my-model --text ./corpus.txt --out ./ht --steps 100
    ppdbench train hidden-transfer --text ./corpus.txt --out ./first --compare 2,3,4,5,6
    ppdbench train hidden-transfer --text ./corpus.txt --out ./second --layers 4 --compare 4,5,6
    """
    from ppdbench.methods.hidden_transfer.train import TransferPlan
    from ppdbench.training import run

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = TransferPlan(
        layers=numbers("--layers", layers, as_given=True) if layers else (),
        compare=numbers("--compare", compare, as_given=True) if compare else (),
        mask=options.pop("mask"),
        loss=options.pop("loss"),
    )
    job, resume, dry = job_of(options, learning_rate=1e-3)
    asked = options["model"]
    training = run.hidden_transfer(model_spec(options), plan, job)
    stand_in_note(asked)
    if dry:
        return print_plan(training)
    return carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )
