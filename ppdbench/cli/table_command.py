"""`ppdbench table`."""

from __future__ import annotations

import click

from ppdbench.cli.options import format_option


@click.command("table")
@click.argument("name", metavar="PAPER/N")
@click.argument("runs", nargs=-1, metavar="RUN...")
@format_option
def command(name: str, runs: tuple[str, ...], form: str) -> int:
    """A paper's table with measured numbers beside the printed ones.

    From stored runs alone: nothing is decoded, no model is loaded. Without a run it says which
    command measures what the table needs.

    \b
    ppdbench table ppd/3 results/my-bench
    ppdbench table ppd/3 results/split results/replicated --format markdown
    """
    from ppdbench.errors import ConfigError
    from ppdbench.report.export import emit
    from ppdbench.store import read_run
    from ppdbench.tables import TABLES

    table = TABLES.get(name)
    if not runs:
        raise ConfigError(f"table {name} needs a run: {table.needs}")
    sheet = table.build([read_run(path) for path in runs])
    rows = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
    emit([sheet], {"table": name, "title": sheet.title, "rows": rows, "notes": sheet.notes}, form)
    return 0
