"""`ppdbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ppdbench.cli.common import notice
from ppdbench.cli.options import salvaging

if TYPE_CHECKING:
    from ppdbench.report.page.runs import Run


@click.command("report")
@click.argument("runs", nargs=-1, metavar="RUN...")
@click.option("--out", default="report.html", show_default=True, metavar="FILE", help="The page.")
@click.option("--plots", metavar="DIR", help="Write every plot as .svg and .png too.")
@salvaging("runs")
def command(runs: tuple[str, ...], out: str, plots: str | None) -> int:
    """One self-contained HTML page about stored runs.

    Reads runs of probe (matches and drafts), decode, bench and sweep; loads no model. The page
    opens from disk, fetches nothing, and holds its data. Runs are compared only where weights,
    examples and machine agree.

    \b
    ppdbench report results/my-bench --out bench.html
    ppdbench report results/my-probe results/my-bench --out both.html --plots pictures
    """
    from ppdbench.errors import ConfigError
    from ppdbench.jsonfile import write_whole
    from ppdbench.report.page.document import page
    from ppdbench.report.page.runs import read_runs
    from ppdbench.report.paths import check_path

    if not runs:
        raise ConfigError("no run given; name the folders of one or more stored runs")
    path = check_path(out, (".html", ".htm"), "page")
    found = read_runs(runs)
    made = page(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, made.text)
    if plots is not None:
        from ppdbench.report.page.plots import save_all

        save_all(made.drawings, Path(plots))
        notice(f"{len(made.drawings)} plots: {plots}")
    click.echo(path)
    return max((_verdict(run) for run in found), key=(0, 3, 1).index)


def _verdict(run: Run) -> int:
    """The exit code that the run itself ended with, and why on stderr."""
    from ppdbench.cli.decode_command import verdict

    if run.stored.torn:
        notice(f"warning: the last line of {run.stored.path} is incomplete and left out")
    if run.is_decode:
        return verdict(run.stored, run.summaries)
    return 3 if run.failed else 0
