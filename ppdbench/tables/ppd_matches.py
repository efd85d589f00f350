"""Tables 2 and 6 to 8 of "Predictive Pipelined Decoding": match rates, pooled and by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ppdbench.files.papers import Paper
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.stats import grouped
from ppdbench.tables.base import TableSheets, pair, table
from ppdbench.tables.matches import (
    BESIDE,
    HEADS,
    MATCHES,
    TASKS,
    ComparedRate,
    compared_rates,
    every_rate,
    our_depth,
    percent_or_dash,
)


@table("ppd/2", recipe=(MATCHES,), tasks=TASKS.values())
def pooled_matches(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """A row for each head and k, a column for each layer, as printed."""
    compared = compared_rates(paper, runs)
    of, depth = paper["setting"]["layers"], our_depth(runs)
    tasks = [
        _pooled(task, group, of, depth) for (task,), group in grouped(compared, "task").items()
    ]
    tasks[-1] = _noted(tasks[-1], f"ours (paper's), in %. {HEADS} {BESIDE}")
    return TableSheets(every_rate("Table 2: match rates", compared), tuple(tasks))


def _pooled(task: str, compared: Sequence[ComparedRate], of: int, depth: int) -> Sheet:
    columns = {c.layer_paper: _depths(c, of, depth) for c in compared}
    rows: dict[tuple[Cell, ...], dict[int, str]] = {}
    for c in compared:
        ours = percent_or_dash(None if c.ours is None else c.ours.match_rate)
        rows.setdefault((c.head, c.k), {})[c.layer_paper] = pair(ours, percent_or_dash(c.paper))
    return Sheet(
        f"Table 2: match rates, {task}",
        ("head", "k", *columns.values()),
        tuple((*names, *(cells[layer] for layer in columns)) for names, cells in rows.items()),
    )


def _depths(c: ComparedRate, of: int, depth: int) -> str:
    ours = "-" if c.layer is None else f"{c.layer}/{depth}"
    return pair(ours, f"{c.layer_paper}/{of}")


def _noted(sheet: Sheet, note: str) -> Sheet:
    return replace(sheet, notes=(*sheet.notes, note))


def _by_position(number: int, paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The paper's layout, ours in the row below: a row for each layer, a column per bucket."""
    compared = compared_rates(paper, runs)
    of, depth = paper["setting"]["layers"], our_depth(runs)
    title = f"Table {number}: match rates by position, {compared[0].task}"
    sheets = [
        _positions(f"{title}, k={k}", group, of, depth)
        for (k,), group in grouped(compared, "k").items()
    ]
    sheets[-1] = _noted(sheets[-1], f"In %, by position of the token. {HEADS} {BESIDE}")
    return TableSheets(every_rate(title, compared), tuple(sheets))


def _positions(title: str, compared: Sequence[ComparedRate], of: int, depth: int) -> Sheet:
    buckets = {c.bucket: c.bucket.replace("-", "-\n") for c in compared}
    rows: dict[tuple[Cell, ...], dict[str, float]] = {}
    for c in compared:
        theirs = (c.head, f"{c.layer_paper}/{of}", "paper")
        rows.setdefault(theirs, {})[c.bucket] = 100 * c.paper
        if c.layer is not None:
            ours = rows.setdefault((c.head, f"{c.layer}/{depth}", "here"), {})
            if c.ours is not None:
                ours[c.bucket] = 100 * c.ours.match_rate
    return Sheet(
        title,
        ("head", "layer", "whose", *buckets.values()),
        tuple((*names, *map(cells.get, buckets)) for names, cells in rows.items()),
        digits=dict.fromkeys(buckets.values(), 1),
        groups=(3, *[1] * len(buckets)),
    )


for _number, _task in zip((6, 7, 8), TASKS.values(), strict=True):
    table(f"ppd/{_number}", recipe=(MATCHES,), tasks=(_task,))(partial(_by_position, _number))
