"""`ppdbench table`: a paper's table beside our numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.cli import completion
from ppdbench.cli.common import (
    check_exports,
    check_pictures,
    draw,
    model_spec,
    notice,
    reading_notes,
    write_exports,
)
from ppdbench.cli.help import Command
from ppdbench.cli.options import export_option, format_option, model_options, salvaging
from ppdbench.errors import ConfigError
from ppdbench.files import resources
from ppdbench.files.paths import check_folder

if TYPE_CHECKING:
    from ppdbench.runs.store import StoredRun
    from ppdbench.tables.base import PaperTable, TableSheets

RUNS = "results/tables/runs"
SCALING = ("data", "limit", "max_new_tokens")
HANDED_ON = (
    *("model", "gguf", "as_stored", "revision", "adapter", "dtype", "quantize"),
    *("device", "device_map", "max_memory", "threads"),
)
WITHOUT_INFLUENCE = ("offline", "trust_remote_code", "no_family_check")
EMBEDDED = "reference"
AUTO = "auto"  # what options say that leave it to the command
AT_LEAST_1 = click.IntRange(min=1)


@click.command(
    "table",
    cls=Command,
    first=(
        *("running", "out", "data", "limit", "max_new_tokens", "text"),
        *("model", "plot", "exports", "form"),
    ),
)
@click.argument("name", metavar="PAPER/N", shell_complete=completion.complete_tables)
@click.argument("runs", nargs=-1, metavar="[RUN...]", shell_complete=completion.complete_files)
@click.option("--run", "running", is_flag=True, help="First run what is missing.")
@click.option("--out", metavar="DIR", default=RUNS, show_default=True, help="Where runs lie.")
@click.option(
    "--data",
    shell_complete=completion.complete_data,
    help="With --run: hub, builtin, or a file or folder (builtin with the embedded model).",
)
@click.option("--limit", type=AT_LEAST_1, help="With --run: the first N examples of each task.")
@click.option("--max-new-tokens", type=AT_LEAST_1, help="With --run: tokens to generate.")
@click.option("--text", metavar="PATH", help="With --run: what steps that train are trained on.")
@click.option(
    "--heads", metavar="DIR", help="With --run: trained heads (those that came with the model)."
)
@model_options
@click.option("--plot", metavar="FILE", help="Write a figure as .png, .svg or .pdf.")
@export_option
@salvaging("runs")
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    name: str,
    runs: tuple[str, ...],
    running: bool,
    out: str,
    plot: str | None,
    exports: tuple[str, ...],
    form: str,
    **options: Any,
) -> int:
    """A paper's table with measured numbers beside the printed ones.

    From stored runs alone, given as RUN or lying in --out: nothing is decoded, no model is
    loaded. With --run what the table needs is run first, step by step, as its recipe says
    (`list tables`); what is finished is kept and not run again.

    \b
    ppdbench table ppd/2 --run --limit 4 --out ./tables
    ppdbench table ppd/2 --out ./tables --format markdown
    ppdbench table ppd/3 results/split results/replicated
    """
    from ppdbench.tables import TABLES

    table = TABLES.get(name)
    check_pictures(plot)
    check_exports(exports)
    if plot is not None:
        table.check_picture()
    _check_asked(ctx, runs, running)
    check_folder("--out", out)
    if running:
        _run_missing(table, Path(out), options)
    stored = _stored(table, runs, Path(out))
    _show(table, table.build(stored), form, exports)
    if plot is not None:
        draw(table.picture(stored), plot)
    return _exit_code(stored)


def _check_asked(ctx: click.Context, runs: tuple[str, ...], running: bool) -> None:
    """Refuse what would have no effect."""
    if runs and running:
        raise ConfigError("give the runs to show, or --run to make them, not both")
    scaling = {*SCALING, *HANDED_ON, *WITHOUT_INFLUENCE, "text", "heads"}
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name in scaling and not running:
            raise ConfigError(f"{parameter.opts[-1]} goes with --run; stored runs stay as they are")
        if given and parameter.name == "out" and runs:
            raise ConfigError("give the runs to show, or --out with the folder they lie in")


def _run_missing(table: PaperTable, folder: Path, options: dict[str, Any]) -> None:
    from ppdbench.tables.steps import RunScale, run_missing

    if not table.recipe:
        raise ConfigError(f"table {table.name} needs no run; leave --run out")
    scale = RunScale(
        model=_words(options, HANDED_ON),
        work=_words(options, SCALING),
        passing=_words(options, WITHOUT_INFLUENCE),
        text=options["text"],
        heads=options["heads"] or _own_heads(options["model"]),
    )
    run_missing(table.recipe, folder, scale, depth=lambda: _depth(options), report=notice)


def _own_heads(model: str | None) -> str | None:
    """Return the name of the heads that came with a model; they fit no other."""
    name = model or EMBEDDED
    return name if resources.came_with(name, "heads") else None


def _words(options: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """List these options as they are typed, where they say anything."""
    words: list[str] = []
    for name in names:
        value = options[name]
        if value is None or value is False or value == AUTO:
            continue
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return tuple(words)


def _depth(options: dict[str, Any]) -> int:
    """Return the number of layers of the model that steps are run with."""
    from ppdbench.engine.loading import load_depth

    return load_depth(model_spec(dict(options)))


def _stored(table: PaperTable, runs: Sequence[str], folder: Path) -> list[StoredRun]:
    """The runs given, or those of the recipe that are there, with a word on those that are not."""
    from ppdbench.runs.store import read_whole
    from ppdbench.tables.steps import missing_steps, stored_runs

    if runs and not table.recipe:
        raise ConfigError(f"table {table.name} needs no run; leave {' '.join(runs)} out")
    stored = [read_whole(path) for path in runs] or stored_runs(table.recipe, folder)
    if table.recipe and not stored:
        raise ConfigError(f"table {table.name} needs a run: {table.needs}; none lies in {folder}")
    for step in [] if runs else missing_steps(table.recipe, folder):
        notice(f"note: not run yet: {step.name}; add --run, or: ppdbench {step.command}")
    reading_notes(stored)
    return stored


def _show(table: PaperTable, laid: TableSheets, form: str, exports: Sequence[str]) -> None:
    from ppdbench.report.export import PrintedOutput

    data = laid.data
    content = {
        "table": table.name,
        "title": data.title,
        "setting": data.lead,
        "rows": [dict(zip(data.header, row, strict=True)) for row in data.rows],
        "notes": data.notes,
    }
    output = PrintedOutput(list(laid.shown), data, content)
    output.emit(form)
    write_exports(output, exports)


def _exit_code(runs: Sequence[StoredRun]) -> int:
    """Return the exit code that runs are to blame for; say each reason on stderr."""
    from ppdbench.report.result import problems

    found = [(run.path, why) for run in runs for why in problems(run.header, run.samples)]
    for path, why in found:
        notice(f"ppdbench: {path}: {why.text}")
    return min((why.code for _, why in found), default=0)
