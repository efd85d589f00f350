"""`ppdbench train prompt-tokens`."""

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

# What the paper trains prompt tokens with.
PROMPT_DEFAULTS = {"batch_size": 4, "sequence": 1024, "warmup_ratio": 0.0}


@click.command(
    "prompt-tokens",
    cls=Command,
    first=FIRST,
    context_settings={"default_map": PROMPT_DEFAULTS},
)
@click.option("--prompts", type=int, default=3, show_default=True, help="Tokens guessed ahead.")
@click.option("--epts", type=int, default=1, show_default=True, help="Embeddings per prompt token.")
@click.option(
    "--mask",
    default="ensemble",
    show_default=True,
    help="What an embedding sees of the others: ensemble, decoder or encoder.",
)
@click.option(
    "--aggregation", default="mean", show_default=True, help="Of an ensemble: mean or learned."
)
@click.option("--exits", type=int, default=1, show_default=True, help="Last layers averaged.")
@click.option(
    "--prefix", type=int, default=0, show_default=True, help="Trained keys per prompt token."
)
@click.option("--custom-head", is_flag=True, help="A head of their own too; see --start.")
@click.option(
    "--rank", type=int, default=0, show_default=True, help="Of that head; 0: a whole matrix."
)
@click.option(
    "--loss", default="kl", show_default=True, help="kl or reverse-kl: the model; ce: the text."
)
@click.option(
    "--decay", type=float, default=0.8, show_default=True, help="Of the weight, token by token."
)
@click.option(
    "--insertions", type=int, default=16, show_default=True, help="Places per sequence and step."
)
@click.option(
    "--start", metavar="DIR", help="Go on from these; with --custom-head the second stage."
)
@save_dtype_option
@training_options
@model_options
def command(start: str | None, save_dtype: str | None, **options: Any) -> int:
    """Rows that guess what follows a token, everything else frozen.

    Defaults are those of the paper on parallel prompt decoding. Afterwards the guesses are
    measured on --held-out text, by distance.

    \b
    ppdbench train prompt-tokens --model ./my-model --text ./corpus.txt --out ./prompts --steps 100
    ppdbench train prompt-tokens --text ./corpus.txt --out ./eight --epts 8 --mask decoder
    ppdbench train prompt-tokens --text ./corpus.txt --out ./second --start ./prompts --custom-head
    """
    from ppdbench.methods.prompt_tokens.train import PromptPlan
    from ppdbench.training import run

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = PromptPlan(**{field.name: options.pop(field.name) for field in fields(PromptPlan)})
    job, resume, dry = job_of(options, learning_rate=1e-2)
    asked = options["model"]
    training = run.prompt_tokens(model_spec(options), plan, job, start)
    stand_in_note(asked)
    if dry:
        return print_plan(training)
    return carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )
