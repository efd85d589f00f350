"""`ppdbench train`."""

from __future__ import annotations

import click

from ppdbench.cli import (
    train_eagle,
    train_heads,
    train_hidden_transfer,
    train_layerskip,
    train_medusa,
    train_prompt_tokens,
)


@click.group("train")
def command() -> None:
    """Train what the papers learn.

    \b
    ppdbench train heads --model ./my-model --text ./corpus.txt --out ./heads --steps 100
    ppdbench train layerskip --model ./my-model --text ./corpus.txt --out ./skipping --steps 100
    ppdbench train medusa --model ./my-model --text ./corpus.txt --out ./medusa --steps 100
    ppdbench train hidden-transfer --model ./my-model --text ./corpus.txt --out ./ht --steps 100
    ppdbench train prompt-tokens --model ./my-model --text ./corpus.txt --out ./prompts --steps 100
    ppdbench train eagle --model ./my-model --text ./corpus.txt --out ./eagle --steps 100
    """


for _kind in (
    train_heads,
    train_medusa,
    train_eagle,
    train_hidden_transfer,
    train_prompt_tokens,
    train_layerskip,
):
    command.add_command(_kind.command)
