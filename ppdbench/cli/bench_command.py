"""`ppdbench bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ppdbench.cli.decode_command import decode
from ppdbench.cli.options import (
    decoding_options,
    format_option,
    model_options,
    run_options,
    task_options,
)

# What needs neither training nor other files.
DEFAULT = ("greedy", "layerskip", "draft-verify", "prompt-lookup", "lookahead", "jacobi")


@click.command("bench")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="A method and its options; may be repeated (those that need nothing trained).",
)
@click.option("--task", "tasks", multiple=True, help="Task or task file; may be repeated (gsm8k).")
@click.option("--suite", metavar="FILE", help="Methods, tasks and settings from a YAML file.")
@decoding_options
@task_options
@model_options
@run_options
@format_option
@click.pass_context
def command(
    ctx: click.Context, /, methods: tuple[str, ...], suite: str | None, **options: Any
) -> int:
    """Several methods on several tasks, in turns with greedy, in one comparison.

    \b
    ppdbench bench --task gsm8k --limit 4 --max-new-tokens 32
    ppdbench bench --method prompt-lookup --method layerskip:draft_length=6 --task xsum --limit 4
    ppdbench bench --suite ./suite.yaml --export table.md
    """
    from ppdbench.bench.runner import Choice

    if suite is not None:
        from ppdbench.bench.suite import read_suite

        content = read_suite(Path(suite))
        methods = methods or content.methods
        options["tasks"] = options["tasks"] or content.tasks
        # What was typed wins over what the file says.
        left = [n for n in options if ctx.get_parameter_source(n) is ParameterSource.DEFAULT]
        options |= {n: content.settings[n] for n in left if n in content.settings}
    choices = [Choice.parse(text) for text in methods or DEFAULT]
    return decode(*choices, kind="bench", **options)
