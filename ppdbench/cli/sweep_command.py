"""`ppdbench sweep`: a grid over the options of one method."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.bench.halving import SEARCHES
from ppdbench.cli import completion
from ppdbench.cli.common import (
    RunCommand,
    check_exports,
    check_pictures,
    chosen_batches,
    draw,
    reading_notes,
    say,
    what_is_decoded,
    write_exports,
)
from ppdbench.cli.decode_command import exit_code
from ppdbench.cli.help import Command
from ppdbench.cli.options import (
    batch_options,
    compile_option,
    decoding_options,
    format_option,
    model_options,
    run_options,
    settings_option,
    task_options,
    tasks_option,
)
from ppdbench.errors import ConfigError
from ppdbench.machine.garbage import import_for_good

if TYPE_CHECKING:
    from ppdbench.bench.sweep_summary import Swept
    from ppdbench.runs.store import StoredRun
    from ppdbench.runs.workload import FinishedRun

SHOWS = {"show", "form", "plot", "exports"}


@click.command(
    "sweep",
    cls=Command,
    first=(
        *("method", "grid", "pairs", "tasks", "model", "data"),
        *("limit", "max_new_tokens", "plot", "out"),
    ),
)
@click.option(
    "--method",
    shell_complete=completion.complete_method_names,
    help="Whose options; see `list methods`.",
)
@click.option(
    "--grid",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="An option and the values to try; also temperature=0.3,0.6,1, with --target. May be "
    "repeated, every combination is a cell.",
)
@settings_option("The same in all cells.")
@click.option(
    "--search",
    type=click.Choice(SEARCHES),
    default="grid",
    show_default=True,
    help="grid: all cells on all examples; halving: all on few, the better half on twice as many, "
    "until two are left or the examples used up.",
)
@click.option("--plot", metavar="FILE", help="Heat map or curve as .png, .svg or .pdf.")
@click.option("--show", metavar="DIR", help="Show a stored sweep again; nothing is decoded.")
@tasks_option
@decoding_options
@batch_options
@compile_option
@task_options
@model_options
@run_options
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    form: str,
    plot: str | None,
    show: str | None,
    exports: tuple[str, ...],
    **options: Any,
) -> int:
    """A grid over one method's options: the best setting, a heat map, losses too.

    Cells take turns with greedy decoding as in `bench`, and each result is kept as it finishes.

    \b
    ppdbench sweep --method layerskip --grid exit_layer=2,4 --grid draft_length=2,4 --limit 4
    ppdbench sweep --method prompt-lookup --grid max_draft=2,4,8,16 --task xsum --limit 8
    ppdbench sweep --method lookahead --grid window=2,4,8 --grid ngram=2,3,4 --search halving
    ppdbench sweep --show results/my-sweep --plot ./sweep.png
    """
    check_exports(exports)
    check_pictures(plot)
    if show is not None:
        _check_asked(ctx)
        return _result(_stored(show), form, plot, exports)
    command, run = _run(**options)
    if run is None:
        return 0
    with command.showing(run):
        code = _result(run, form, plot, exports)
    left = command.end(run)
    return code or left


def _check_asked(ctx: click.Context) -> None:
    """Refuse options that a stored run has settled."""
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in SHOWS and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigError(f"--show reads a stored sweep; leave {parameter.opts[0]} out")


def _stored(folder: str) -> StoredRun:
    from ppdbench.runs.store import read_whole

    run = read_whole(folder)
    reading_notes([run])
    return run


def _run(
    method: str | None,
    grid: tuple[str, ...],
    pairs: tuple[str, ...],
    search: str,
    **options: Any,
) -> tuple[RunCommand, FinishedRun | None]:
    import_for_good("torch")
    from ppdbench.bench.grid import Grid
    from ppdbench.bench.sweep import SweepConfig, choices, run_sweep

    if method is None:
        raise ConfigError("give --method and --grid, or --show with the folder of a stored sweep")
    space = Grid.parse(method, grid, pairs)
    command = RunCommand.begin(options)
    batches = chosen_batches(options)
    decoded = what_is_decoded(options)
    config = SweepConfig(
        methods=choices(space), space=space, search=search, **decoded, **batches, **options
    )
    names = ("sweep", method, "+".join(config.tasks), config.model.name)
    return command, command.run(partial(run_sweep, config), *names)


def _result(
    run: FinishedRun | StoredRun, form: str, plot: str | None, exports: tuple[str, ...]
) -> int:
    """Show what a sweep found, write it where asked to, and say how it went."""
    from ppdbench.bench.sums import add_up
    from ppdbench.bench.sweep_summary import swept
    from ppdbench.report.outputs import of_sweep

    found = swept(run.header, add_up(run.samples))
    output = of_sweep(found)
    if form == "table":
        _print(found)
    else:
        output.emit(form)
    write_exports(output, exports)
    if plot is not None:
        from ppdbench.report.pictures.sweep import sweep_picture

        draw(sweep_picture(found), plot)
    return exit_code(run)


def _print(found: Swept) -> None:
    from ppdbench.report.sweep_map import print_map
    from ppdbench.report.sweep_tables import best_setting, by_batch, cells, typed
    from ppdbench.report.terminal import people, print_sheets

    print_sheets([cells(found)])
    print_map(found, people())
    print_sheets([best_setting(found), *by_batch(found)])
    line = typed(found)
    if line is not None:
        say(line)  # not through rich, which would wrap it
