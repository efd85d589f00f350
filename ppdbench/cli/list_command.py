"""`ppdbench list`: the methods, tasks, models and metrics that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ppdbench.cli import completion
from ppdbench.cli.common import notice
from ppdbench.cli.options import format_option
from ppdbench.errors import ConfigError
from ppdbench.files.publications import TABLED
from ppdbench.report.sheet import Sheet

SHOWN = {
    "methods": ("name", "exact", "options", "summary"),
    "tasks": ("name", "dataset", "tokens", "metrics"),
    "tables": ("table", "title", "rows", "recipe"),
}
# What a narrow terminal does without, and what stands below its row there.
SPARE = {
    "methods": ("options",),
    "tasks": ("dataset",),
    "models": ("what", "kind"),
    "tables": ("rows",),
}
PROSE = {"methods": "summary", "models": "why"}
KINDS = ("methods", "tasks", "models", "tables")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("method", required=False, shell_complete=completion.complete_method_names)
@format_option
def command(kind: str, method: str | None, form: str) -> int:
    """List what there is, with options and defaults; with a METHOD, what its options mean.

    \b
    ppdbench list methods
    ppdbench list methods layerskip
    ppdbench list tasks --format json
    """
    from ppdbench import methods
    from ppdbench.cli import catalog
    from ppdbench.report.export import emit

    if method is not None:
        if kind != "methods":
            raise ConfigError(f"list {kind} takes no further name, got {method!r}")
        return _one_method(method, form)
    entries: list[dict[str, Any]] = getattr(catalog, kind)()
    # All of it goes to files; people get what fits a line.
    columns = SHOWN.get(kind, tuple(entries[0])) if form == "table" else tuple(entries[0])
    rows = tuple(tuple(_cell(entry[column]) for column in columns) for entry in entries)
    people = form == "table"
    spare, prose = SPARE.get(kind, ()) if people else (), PROSE.get(kind) if people else None
    sheet = Sheet(kind, columns, rows, notes=tuple(_notes(kind)), spare=spare, prose=prose)
    emit([sheet], entries, form)
    if kind == "methods":
        for name, why in methods.BROKEN_PLUGINS.items():
            notice(f"note: the plugin {name!r} cannot be loaded: {why}")
    return 0


def _one_method(name: str, form: str) -> int:
    """The options of one method, with what they mean."""
    from ppdbench.cli import catalog
    from ppdbench.report.export import emit

    entry = catalog.method_entry(name)
    options = entry["options"]
    columns = ("name", "type", "default", "help")
    rows = tuple(tuple(str(option[column]) for column in columns) for option in options)
    notes = tuple(f"From: {work['title']}, {work['link']}" for work in entry["papers"])
    title = f"{name}: {entry['summary']}"
    emit([Sheet(title, columns, rows, notes=notes, prose="help")], entry, form)
    return 0


def _notes(kind: str) -> Iterator[str]:
    """Explain words that are not plain, and where things come from."""
    from ppdbench.methods import METHODS

    if kind == "methods":
        yield "exact: outputs are greedy's, token by token. `list methods NAME` explains options."
        for name in METHODS:
            yield from (f"{name}: {work}" for work in METHODS.get(name).papers)
    elif kind == "tables":
        yield "recipe: `table NAME --run` can measure numbers of the same kind."
        yield from (f"{paper}: {work}" for paper, work in TABLED.items())
    elif kind == "tasks":
        yield "tokens: generated at most; metrics: what outputs are scored with."


def _cell(value: Any) -> str | int | float | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_cell_of_list(item) for item in value)
    return None if value is None else value if isinstance(value, int | float) else str(value)


def _cell_of_list(item: Any) -> str:
    if isinstance(item, dict):
        return str(item["link"]) if "link" in item else f"{item['name']}={item['default']}"
    return str(item)
