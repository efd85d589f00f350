"""`ppdbench train heads`."""

from __future__ import annotations

from typing import Any

import click

from ppdbench.cli.common import model_spec, numbers, stand_in_note
from ppdbench.cli.help import Command
from ppdbench.cli.options import model_options
from ppdbench.cli.training import FIRST, carry_out, job_of, print_plan, training_options


@click.command("heads", cls=Command, first=FIRST)
@click.option("--layers", help="Layers run: 4,8,12; all but the last by default.")
@click.option("--loss", default="ce", show_default=True, help="ce: the text; kl: the model itself.")
@click.option(
    "--rank", type=int, help="Low-rank change of the model's head instead of a whole one."
)
@training_options
@model_options
def command(layers: str | None, loss: str, rank: int | None, **options: Any) -> int:
    """A head for each exit layer, everything else frozen.

    Defaults are those of Predictive Pipelined Decoding, Table 4.

    \b
    ppdbench train heads --model ./my-model --text ./corpus.txt --out ./heads --steps 100
    ppdbench train heads --text ./corpus.txt --out ./heads --rank 64 --loss kl --dry-run
    """
    from ppdbench.training import run

    job, resume, dry = job_of(options, learning_rate=2e-5)
    chosen = numbers("--layers", layers) if layers else ()
    asked = options["model"]
    training = run.heads(model_spec(options), chosen, job, loss=loss, rank=rank)
    stand_in_note(asked)
    if dry:
        return print_plan(training)
    return carry_out(training, resume, lambda trained: trained.save(job.out))
