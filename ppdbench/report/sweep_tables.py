"""Tables of a sweep for people: its cells by speed, the best of them, and how to run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from ppdbench.bench.grid import TEMPERATURE
from ppdbench.bench.schedule import schedule
from ppdbench.bench.sweep_summary import BATCH, Cell, Swept
from ppdbench.report import decode_tables, evidence
from ppdbench.report.command_line import decode_line
from ppdbench.report.sheet import Cell as Entry
from ppdbench.report.sheet import Sheet
from ppdbench.runs.records import SweepHeader

CHOSEN = (
    "Chosen and measured on the same examples, the best looks better than it is: measure it "
    "again on others."
)

FOR_VLLM = (
    "The fastest draft length from each batch size measured to the next, 0 where greedy decoding "
    "was faster. In JSON as vLLM's num_speculative_tokens_per_batch_size takes it."
)


def sheets(found: Swept) -> list[Sheet]:
    """The cells, and the verdict on the best of them."""
    return [cells(found), best_setting(found), *by_batch(found)]


def by_batch(found: Swept) -> list[Sheet]:
    """The draft length for each size of a batch, where the sweep was over both."""
    told = schedule(found)
    if not told:
        return []
    ranges = told["num_speculative_tokens_per_batch_size"]
    return [
        Sheet(
            "Drafted tokens by batch",
            ("batch", "drafted"),
            tuple((f"{a} to {b}" if a < b else str(a), drafted) for a, b, drafted in ranges),
            notes=(FOR_VLLM,),
        )
    ]


def cells(found: Swept) -> Sheet:
    """One row per cell, the fastest first, losses and failures included."""
    several = len({cell.examples for cell in found.cells}) > 1
    columns = [*(name.replace("_", "\n") for name in found.axes), *(["examples"] * several)]
    measured = "" if several else f", {evidence.sized(found.summaries)}"
    return Sheet(
        f"{title(found)}{measured}: {len(found.cells)} cells by speed",
        (*columns, "tokens\nper s", "per\nstep", "output", "speedup", "95%"),
        tuple(_row(cell, several) for cell in found.cells),
        notes=tuple(_notes(found)),
        digits={"tokens\nper s": 1, "per\nstep": 2},
        spare=("per\nstep", "tokens\nper s"),
    )


def _row(cell: Cell, several: bool) -> tuple[Entry, ...]:
    examples = (cell.examples,) if several else ()
    at = tuple(shown(value) for value in cell.at.values())
    summary = cell.summary
    if summary is None:
        return (*at, *examples, None, None, "NOT RUN", "-", "-")
    value, interval = evidence.speedup_cells(summary)
    return (
        *at,
        *examples,
        summary["tokens_per_s"],
        summary["committed_per_step"],
        _output(cell),
        f"{value} slower" if cell.standing == "slower" else value,
        interval,
    )


def _output(cell: Cell) -> str:
    """Sum up the verdicts on outputs; the number of examples stands elsewhere."""
    assert cell.summary is not None
    if cell.summary["identical"] == cell.examples:
        return "identical"
    return decode_tables.verdict_text(cell.summary)


def shown(value: Any) -> str | int | float:
    """An option's value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int | float) else str(value)


def title(found: Swept) -> str:
    """The method, the options that stayed, the tasks and the model."""
    space = found.header.config.space
    fixed = "".join(f", {key}={value}" for key, value in space.fixed.items())
    where = decode_tables.where(found.summaries[0])
    return f"{space.method}{fixed} on {', '.join(found.header.data)}, {where}"


def _notes(found: Swept) -> list[str]:
    notes = evidence.notes_on(found.summaries)
    if len(found.rungs) > 1:
        steps = ", ".join(f"{r.cells} cells on {r.examples}" for r in found.rungs)
        notes.append(f"Successive halving, by examples: {steps}.")
    if not found.complete:
        notes.append("Unfinished: what is not measured yet may change the order; use --resume.")
    return notes


def best_setting(found: Swept) -> Sheet:
    """The best setting, the second, and whether they can be told apart."""
    names = ("best", "second")
    rows: list[tuple[Entry, ...]] = []
    for name, cell in zip(names, found.leaders, strict=False):
        assert cell.summary is not None
        value, interval = evidence.speedup_cells(cell.summary)
        rows.append((name, setting(cell), value, interval))
    if found.lead is not None and found.lead.low is not None:
        value = f"{found.lead.value:.2f}x" if found.distinguishable else "no difference"
        interval = f"[{found.lead.low:.2f}, {found.lead.high:.2f}]"
        rows.append(("best over second", "", value, interval))
    return Sheet(
        _headline(found),
        ("", "setting", "speedup", "95%"),
        tuple(rows),
        notes=tuple(_remarks(found)),
    )


def setting(cell: Cell) -> str:
    """Write a cell's setting as it is typed."""
    return ", ".join(f"{name}={shown(value)}" for name, value in cell.at.items())


def _headline(found: Swept) -> str:
    if not found.leaders:
        return "No setting has a speedup to show"
    best = found.leaders[0]
    losing = {"slower": "every setting is slower than greedy", "no difference": "none is faster"}
    remark = losing.get(best.standing, "")
    return f"Best setting, on {best.examples} examples{f': {remark}' if remark else ''}"


def _remarks(found: Swept) -> list[str]:
    if not found.leaders:
        return []
    best = found.leaders[0]
    assert best.summary is not None
    remarks = [CHOSEN]
    if not best.summary["exact"]:
        remarks.append("Not exact: the fastest setting need not agree with greedy most often.")
    return remarks


def long(found: Swept) -> Sheet:
    """Every figure of every cell that was measured, for other programs."""
    measured = [cell for cell in found.cells if cell.summary is not None]
    told = decode_tables.long(found.summaries)
    figures = {name: [row[i] for row in told.rows] for i, name in enumerate(told.header)}
    columns: dict[str, Sequence[Entry]] = {}
    for name in found.axes:
        values: list[Entry] = [shown(cell.at[name]) for cell in measured]
        # An option may be called as a figure is; they share a column where they say the same.
        columns[name if figures.get(name, values) == values else f"setting_{name}"] = values
    columns["standing"] = [cell.standing for cell in measured]
    columns.update(figures)
    return Sheet("cells", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def sweep_json(found: Swept) -> dict[str, Any]:
    """Return all of it, numbers as numbers."""
    lead, leaders = found.lead, [cell.label for cell in found.leaders]
    return {
        "method": found.header.config.space.method,
        "grid": {name: list(values) for name, values in found.axes.items()},
        "fixed": found.header.config.space.fixed,
        "search": found.header.config.search,
        "rungs": msgspec.to_builtins(found.rungs),
        "complete": found.complete,
        "best": leaders[0] if leaders else None,
        "second": leaders[1] if len(leaders) > 1 else None,
        "best_over_second": lead and {"value": lead.value, "low": lead.low, "high": lead.high},
        "distinguishable": found.distinguishable,
        "command": typed(found),
        **schedule(found),
        "cells": [_cell_json(cell) for cell in found.cells],
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    facts = {"label": cell.label, "setting": dict(cell.at), "standing": cell.standing}
    return {**facts, "error": cell.error, **(cell.summary or {})}


def typed(found: Swept) -> str | None:
    """Write the command that decodes with the best setting, ready to be pasted."""
    if not found.leaders:
        return None
    at, space = found.leaders[0].at, found.header.config.space
    options = {name: shown(value) for name, value in at.items() if name not in (BATCH, TEMPERATURE)}
    header = _at_temperature(found.header, at[TEMPERATURE]) if TEMPERATURE in at else found.header
    line = decode_line(header, space.method, {**space.fixed, **options})
    size = at.get(BATCH, 1)
    return line if size == 1 else f"{line} --batch {size}"


def _at_temperature(header: SweepHeader, temperature: float) -> SweepHeader:
    target = structs.replace(header.config.target, temperature=temperature)
    return structs.replace(header, config=structs.replace(header.config, target=target))
