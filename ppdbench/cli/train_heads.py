"""`ppdbench train heads`."""

from __future__ import annotations

from typing import Any

import click

from ppdbench.cli.common import model_spec, numbers, stand_in_note
from ppdbench.cli.help import Command
from ppdbench.cli.options import model_options
from ppdbench.cli.training import FIRST, carry_out, job_of, print_plan, training_options


@click.command("heads", cls=Command, first=FIRST)
@click.option(
    "--layers",
    help="Layers run before each head, as 4,8,12; all: every layer but the last (a quarter, half "
    "and three quarters of the layers).",
)
@click.option("--loss", default="ce", show_default=True, help="ce: the text; kl: the model itself.")
@click.option(
    "--rank",
    type=int,
    default=64,
    show_default=True,
    help="Numbers per token of a head, which is a low-rank change of the model's own.",
)
@click.option("--whole", is_flag=True, help="A whole matrix for each head, as in the paper.")
@training_options
@model_options
def command(layers: str | None, loss: str, rank: int, whole: bool, **options: Any) -> int:
    """A head for each of some exit layers, everything else frozen.

    Learning rate, batch and schedule are those of Predictive Pipelined Decoding, Table 4. The
    paper trains a whole matrix for each layer (--whole): each takes as much memory as the model's
    own head, and four times as much while it is trained.

    \b
    ppdbench train heads --model ./my-model --text ./corpus.txt --out ./heads --steps 100
    ppdbench train heads --text ./corpus.txt --out ./heads --layers 4,8 --whole --dry-run
    """
    from ppdbench.training import run

    job, resume, dry = job_of(options, learning_rate=2e-5)
    every = layers == "all"
    chosen = numbers("--layers", layers) if layers and not every else ()
    asked = options["model"]
    kept = None if whole else rank
    training = run.heads(model_spec(options), chosen, job, loss=loss, rank=kept, every=every)
    stand_in_note(asked)
    if dry:
        return print_plan(training)
    return carry_out(training, resume, lambda trained: trained.save(job.out))
