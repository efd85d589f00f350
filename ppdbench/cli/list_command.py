"""`ppdbench list`."""

from __future__ import annotations

from typing import Any

import click

from ppdbench.cli.options import format_option

SHOWN = {"tasks": ("name", "dataset", "tokens", "metrics")}
KINDS = ("methods", "tasks", "models", "tables")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@format_option
def command(kind: str, form: str) -> int:
    """What there is, with options and defaults.

    \b
    ppdbench list methods
    ppdbench list tasks --format json
    """
    from ppdbench import catalog
    from ppdbench.report.export import Sheet, emit

    entries: list[dict[str, Any]] = getattr(catalog, kind)()
    # All of it goes to files; people get what fits a line.
    columns = SHOWN.get(kind, tuple(entries[0])) if form == "table" else tuple(entries[0])
    rows = tuple(tuple(_cell(entry[column]) for column in columns) for entry in entries)
    emit([Sheet(kind, columns, rows)], entries, form)
    return 0


def _cell(value: Any) -> str | int | float | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_cell_of_list(item) for item in value)
    return None if value is None else value if isinstance(value, int | float) else str(value)


def _cell_of_list(item: Any) -> str:
    if isinstance(item, dict):
        return f"{item['name']}={item['default']}"
    return str(item)
