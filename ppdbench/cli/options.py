"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ppdbench.report import FORMATS

F = TypeVar("F", bound=Callable[..., Any])


def stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order they are given."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How to write the result on stdout.",
)

model_options = stack(
    click.option(
        "--model",
        metavar="NAME",
        help="Hub id, local folder, `reference` (the default) or synthetic:SPEC.",
    ),
    click.option("--revision", help="Revision of a hub model."),
    click.option(
        "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16."
    ),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--threads", type=int, help="CPU threads for the model (all cores)."),
    click.option("--offline", is_flag=True, help="Never ask the hub."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a hub model."),
)

task_options = stack(
    click.option("--data", help="hub, builtin, or a file or folder with the data set's columns."),
    click.option("--split", help="Split of the data set (the task's own)."),
    click.option("--limit", type=int, help="Use the first N examples (all)."),
    click.option(
        "--shots", type=int, default=0, show_default=True, help="Worked examples before each."
    ),
    click.option("--max-new-tokens", type=int, help="Tokens to generate (the task's own)."),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Seed of everything drawn."
    ),
)

drawing_options = stack(
    click.option("--top-k", type=int, help="k of the top-k target (3)."),
    click.option("--top-p", type=float, help="p of the top-p target (0.95)."),
    click.option("--temperature", type=float, help="Temperature of both (1)."),
)

decoding_options = stack(
    click.option("--target", help="How tokens are picked: greedy (default), top-k, top-p."),
    drawing_options,
    click.option(
        "--strict", is_flag=True, help="Every pass in one fixed shape: no ties from rounding."
    ),
    click.option("--warmup", default=2, show_default=True, help="Untimed runs before the first."),
    click.option(
        "--export",
        "exports",
        multiple=True,
        metavar="FILE",
        help="Write the result to .json, .csv, .md or .tex too; may be repeated.",
    ),
)

run_options = stack(
    click.option(
        "--out", metavar="DIR", help="Folder of the run (results/COMMAND-TASK-MODEL-TIME)."
    ),
    click.option("--resume", is_flag=True, help="Continue the run in --out."),
)
