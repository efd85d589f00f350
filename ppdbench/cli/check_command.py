"""`ppdbench check`: a run against its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ppdbench.cli import completion
from ppdbench.cli.common import notice
from ppdbench.cli.options import format_option, salvaging
from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_path, check_writable
from ppdbench.files.whole import write_whole

if TYPE_CHECKING:
    from ppdbench.check.comparison import Comparison


@click.command("check")
@click.argument("run", metavar="RUN", shell_complete=completion.complete_files)
@click.option(
    "--baseline",
    required=True,
    metavar="RUN|FILE",
    help="What to compare with: a run folder, or a file that --update wrote.",
)
@click.option("--thresholds", metavar="FILE", help="What may change, and by how much (YAML).")
@click.option("--junit", metavar="FILE", help="Write the checks as JUnit XML.")
@click.option("--summary", metavar="FILE", help="Append a Markdown page, as CI jobs show it.")
@click.option(
    "--annotations", type=click.Choice(["github"]), help="Say what failed as CI annotations too."
)
@click.option("--update", is_flag=True, help="Write RUN to the baseline file instead.")
@salvaging("run", "baseline")
@format_option
def command(
    run: str,
    baseline: str,
    thresholds: str | None,
    junit: str | None,
    summary: str | None,
    annotations: str | None,
    update: bool,
    form: str,
) -> int:
    """Compare a run with its baseline; the exit code says whether it got worse.

    Outputs, acceptance and match rates must be the same, speedups may fall within the noise of
    both runs, unless a thresholds file says otherwise. Nothing is decoded, no model is loaded.

    \b
    ppdbench check results/my-bench --baseline ./baseline.json --update
    ppdbench check results/my-bench --baseline ./baseline.json
    ppdbench check results/new --baseline results/old --thresholds ./limits.yaml --junit ./check.xml
    """
    if update:
        if thresholds or junit or summary or annotations:
            raise ConfigError("--update only writes a baseline; give no other option but --format")
        return _update(Path(run), baseline, form)
    from ppdbench.check.comparison import compare_paths, comparison_json
    from ppdbench.check.thresholds import Thresholds, read_thresholds
    from ppdbench.report import check_tables
    from ppdbench.report.export import PrintedOutput

    for path in (junit, summary):
        if path is not None:
            check_writable(path)
    limits = Thresholds() if thresholds is None else read_thresholds(Path(thresholds))
    found = compare_paths(Path(run), Path(baseline), limits)
    sheets, long = check_tables.sheets(found), check_tables.long(found)
    PrintedOutput(sheets, long, comparison_json(found)).emit(form)
    _write(found, junit, summary, annotations)
    _notices(found)
    return found.exit_code


def _update(run: Path, baseline: str, form: str) -> int:
    from ppdbench.check.baseline import snapshot_json, write_baseline
    from ppdbench.report.check_tables import stored
    from ppdbench.report.export import emit

    path = check_path(baseline, (".json",), "baseline")
    made = write_baseline(path, run)
    emit([stored(made)], snapshot_json(made), form)
    notice(f"baseline: {path} ({path.stat().st_size / 1024:.0f} KB)")
    return 0


def _write(
    found: Comparison, junit: str | None, summary: str | None, annotations: str | None
) -> None:
    """The forms that CI systems read; annotations go to stderr, where GitHub looks too."""
    if junit is not None:
        from ppdbench.check.junit import to_junit

        write_whole(Path(junit), to_junit(found))
    if summary is not None:
        from ppdbench.report.check_tables import summary as page

        Path(summary).parent.mkdir(parents=True, exist_ok=True)
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(page(found))
    if annotations is not None:
        from ppdbench.check.annotations import to_github

        for line in to_github(found):
            click.echo(line, err=True)  # cleaned already, for the runner that reads it
    for path in filter(None, (junit, summary)):
        notice(f"written: {path}")


def _notices(found: Comparison) -> None:
    """Say why the exit code is not 0, and what to do if all is well nevertheless."""
    for path in found.unsealed:
        notice(
            f"note: {path} has no checksums, as earlier versions wrote none; damage that leaves "
            "it readable would not show"
        )
    if found.unfinished:
        notice(f"ppdbench: {len(found.unfinished)} failed to run; the first: {found.unfinished[0]}")
    if found.failed:
        notice(
            f"ppdbench: {len(found.failed)} of {len(found.checks)} checks failed; where that is "
            f"meant, make it the baseline with --update"
        )
