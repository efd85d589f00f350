"""`ppdbench bench`: several methods on several tasks, in one comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.cli.common import chosen_model, notice
from ppdbench.cli.decode_command import run_methods
from ppdbench.cli.help import Command
from ppdbench.cli.options import methods_option, show_option, tasks_option, whole_run_options
from ppdbench.machine.garbage import import_for_good

if TYPE_CHECKING:
    from ppdbench.bench.runner import Choice

ALL = "all"  # every method of ours that can run


@click.command(
    "bench",
    cls=Command,
    first=(
        *("methods", "tasks", "model", "data", "limit", "max_new_tokens"),
        *("against", "suite", "out", "form"),
    ),
)
@methods_option(
    "A method and its options, or all; may be repeated (those that need nothing trained).",
    "--methods",
)
@tasks_option
@show_option
@click.option("--suite", metavar="FILE", help="Methods, tasks and settings from a YAML file.")
@click.option(
    "--against",
    type=click.Choice(["transformers"]),
    help="Add its generate() and assisted modes as methods of the same run.",
)
@click.option("--plot", metavar="FILE", help="Picture of speeds by batch as .png, .svg or .pdf.")
@whole_run_options
@click.pass_context
def command(
    ctx: click.Context, /, methods: tuple[str, ...], suite: str | None, **options: Any
) -> int:
    """Several methods on several tasks, in turns with greedy, in one comparison.

    \b
    ppdbench bench --task gsm8k --limit 4 --max-new-tokens 32
    ppdbench bench --method prompt-lookup --method layerskip:draft_length=6 --task xsum --limit 4
    ppdbench bench --methods all --task gsm8k --limit 2 --max-new-tokens 32
    ppdbench bench --against transformers --task xsum --limit 4 --max-new-tokens 32
    ppdbench bench --suite ./suite.yaml --export table.md
    """
    if suite is not None:
        from ppdbench.bench.suite import read_suite

        content = read_suite(Path(suite))
        methods = methods or content.methods
        options["tasks"] = options["tasks"] or content.tasks
        # What was typed wins over what the file says.
        left = [n for n in options if ctx.get_parameter_source(n) is ParameterSource.DEFAULT]
        options |= {n: content.settings[n] for n in left if n in content.settings}
    import_for_good("torch")
    from ppdbench.methods import USUAL

    asked = [(text, _chosen(text, options["model"])) for text in methods or USUAL]
    choices = [choice for _, chosen in asked for choice in chosen]
    optional = [choice for text, chosen in asked if text == ALL for choice in chosen]
    if (peer := options.pop("against")) is not None:
        together = options["batch"] not in (None, "1")
        choices = _beside_peers(choices, options["model"], peer, together=together)
    return run_methods(*choices, kind="bench", optional=optional, **options)


def _chosen(text: str, model: str | None) -> list[Choice]:
    from ppdbench.bench.choices import every_method
    from ppdbench.bench.runner import Choice

    if text != ALL:
        return [Choice.parse(text)]
    choices, lacking = every_method(chosen_model(model))
    for why in lacking:
        notice(f"left out: {why}")
    return choices


def _beside_peers(
    choices: list[Choice], model: str | None, peer: str, *, together: bool
) -> list[Choice]:
    from ppdbench.bench.choices import with_peers

    choices, note = with_peers(choices, chosen_model(model), peer, together=together)
    if note is not None:
        notice(f"note: {note}")
    return choices
