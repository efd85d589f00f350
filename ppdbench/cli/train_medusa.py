"""`ppdbench train medusa`."""

from __future__ import annotations

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


@click.command("medusa", cls=Command, first=FIRST)
@click.option("--heads", type=int, default=5, show_default=True, help="Tokens guessed ahead.")
@click.option("--layers", type=int, default=1, show_default=True, help="Residual blocks per head.")
@click.option(
    "--after",
    type=int,
    default=0,
    help="Layers run before the state that heads read (all); fewer: early exits, to compare with.",
)
@click.option(
    "--rank",
    type=int,
    help="Low-rank change of the model's head instead of a matrix per head; 0: that head as it is.",
)
@click.option("--loss", default="kl", show_default=True, help="kl: the model itself; ce: the text.")
@click.option(
    "--decay", type=float, default=0.8, show_default=True, help="Of the weight, head by head."
)
@save_dtype_option
@training_options
@model_options
def command(
    heads: int,
    layers: int,
    after: int,
    rank: int | None,
    loss: str,
    decay: float,
    save_dtype: str | None,
    **options: Any,
) -> int:
    """Heads that guess the tokens after the next one, everything else frozen.

    Afterwards the guesses are measured on --held-out text, by distance.

    \b
    ppdbench train medusa --model ./my-model --text ./corpus.txt --out ./medusa --steps 100
    ppdbench train medusa --text ./corpus.txt --out ./medusa --heads 4 --rank 32 --dry-run
    """
    from ppdbench.methods.medusa.train import MedusaPlan
    from ppdbench.training import run

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = MedusaPlan(heads=heads, layers=layers, after=after, rank=rank, loss=loss, decay=decay)
    job, resume, dry = job_of(options, learning_rate=1e-3)
    asked = options["model"]
    training = run.medusa(model_spec(options), plan, job)
    stand_in_note(asked)
    if dry:
        return print_plan(training)
    return carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )
