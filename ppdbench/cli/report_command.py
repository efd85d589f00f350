"""`ppdbench report`: tables, pictures and pages of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ppdbench.cli import completion
from ppdbench.cli.common import notice, reading_notes, say
from ppdbench.cli.options import salvaging
from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_path
from ppdbench.files.whole import write_whole
from ppdbench.report import FORMATS, PROGRAMS

if TYPE_CHECKING:
    from ppdbench.report.page.runs import Run

PAGE = "report.html"


@click.command("report")
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=completion.complete_files)
@click.option("--out", metavar="FILE", help=f"The page ({PAGE} in the current folder).")
@click.option("--plots", metavar="DIR", help="Write every plot as .svg and .png too.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Instead of a page, print a run's tables again as its own command did.",
)
@salvaging("runs")
def command(runs: tuple[str, ...], out: str | None, plots: str | None, form: str | None) -> int:
    """One self-contained HTML page about stored runs.

    Reads runs of probe (of any kind), decode, bench and sweep; loads no model. The page
    opens from disk, fetches nothing, and holds its data. Runs are compared only where weights,
    examples and machine agree.

    \b
    ppdbench report results/my-bench --out bench.html
    ppdbench report results/my-probe results/my-bench --out both.html --plots pictures
    ppdbench report results/my-bench --format markdown
    """
    from ppdbench.report.page.document import page
    from ppdbench.report.page.runs import read_runs

    if not runs:
        raise ConfigError("no run given; name the folders of one or more stored runs")
    if form is not None:
        if plots or out is not None:
            raise ConfigError("--format prints tables; leave --out and --plots, the page's, out")
        return _print(runs, form)
    path = check_path(PAGE if out is None else out, (".html", ".htm"), "page")
    found = read_runs(runs)
    made = page(found)
    write_whole(path, made.text)
    if plots is not None:
        from ppdbench.report.pictures.files import save_all

        save_all(made.drawings, Path(plots))
        notice(f"{len(made.drawings)} plots: {plots}")
    say(str(path))
    if out is None:
        notice(f"note: no --out given, so the page is {path.absolute()}")
    reading_notes([run.stored for run in found])
    return max((_verdict(run) for run in found), key=(0, 3, 1).index)


def _print(runs: tuple[str, ...], form: str) -> int:
    """The tables of one run on stdout."""
    from ppdbench.report.outputs import of_run
    from ppdbench.report.page.runs import read_runs

    if len(runs) > 1:
        raise ConfigError("--format prints the tables of one run; give one, or make a page of all")
    (run,) = read_runs(runs)
    of_run(run).emit(form)
    if run.unfinished and form in PROGRAMS:  # every table of the others says so itself
        notice(run.unfinished)
    reading_notes([run.stored])
    return _verdict(run)


def _verdict(run: Run) -> int:
    """The exit code that the run itself ended with, and why on stderr."""
    from ppdbench.cli.decode_command import exit_code

    if run.is_decode:
        return exit_code(run.stored, run.samples)
    return 3 if run.failed else 0
