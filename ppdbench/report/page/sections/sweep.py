"""What a sweep over a method's options found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from ppdbench.bench.sweep_summary import Cell, Swept, swept
from ppdbench.report import sweep_map, sweep_tables
from ppdbench.report.page.charts import heatmap
from ppdbench.report.page.charts.speedups import speedups
from ppdbench.report.page.drawing import Drawing, slug
from ppdbench.report.page.frame import Scale
from ppdbench.report.page.html import Child, h
from ppdbench.report.page.parts import Section, few, folded, gallery, table
from ppdbench.report.page.runs import SWEEPS, Run, of_kind
from ppdbench.report.page.sections.speed import described, speedup_of

DRAWN = 10  # settings in the picture of the best; the table has all
WORDS = (
    "Shades follow the speedup. ★ best, ▲ faster than greedy, ▼ slower, ≈ no difference beyond "
    "noise, ✗ mismatch, ! failed; in brackets what was measured on fewer examples than the best. "
)


def section(runs: Sequence[Run]) -> tuple[Section | None, list[Drawing]]:
    """The map of each sweep, and its best settings."""
    sweeps = of_kind(runs, SWEEPS)
    drawings: list[Drawing] = []
    body: list[Child] = [h("p", WORDS, sweep_tables.CHOSEN)]
    for run in sweeps:
        found = swept(run.header, run.sums)
        own = [*_map(run, found), *_best(run, found)]
        drawings += own
        body += [
            h("h3", run.name) if len(sweeps) > 1 else None,
            *few(run),
            gallery(own),
            folded("All numbers", map(table, sweep_tables.sheets(found))),
        ]
    return (Section("sweep", "Sweep", tuple(body)) if sweeps else None), drawings


def _map(run: Run, found: Swept) -> list[Drawing]:
    """Two options against each other, of further ones the best; nothing for a single option."""
    if len(found.axes) < 2:
        return []
    (rows, row_values), (columns, column_values) = list(found.axes.items())[:2]
    scale = _scale(found)
    cells = {}
    for row, column in product(row_values, column_values):
        cell = found.best_at({rows: row, columns: column})
        cells[str(sweep_tables.shown(row)), str(sweep_tables.shown(column))] = _drawn(
            cell, found, scale
        )
    title, words = sweep_map.map_title(found), f"Rows: {rows}, columns: {columns}."
    return [heatmap.heatmap(slug(run.name, "sweep"), title, words, cells, columns)]


def _scale(found: Swept) -> Scale:
    speeds = [cell.speedup for cell in found.cells if cell.speedup is not None]
    return Scale(min(speeds, default=1), max(speeds, default=1), log=True)


def _drawn(cell: Cell, found: Swept, scale: Scale) -> heatmap.HeatmapCell:
    shade = 0.0 if cell.speedup is None else scale.share(cell.speedup)
    mark = sweep_map.MARKS[sweep_map.kind(found, cell)]
    text = f"{mark}{sweep_map.cell_text(found, cell)}"
    return heatmap.HeatmapCell(shade, text, f"{sweep_tables.setting(cell)}: {text}")


def _best(run: Run, found: Swept) -> list[Drawing]:
    measured: Mapping[str, Cell] = {
        sweep_tables.setting(cell): cell for cell in found.cells if cell.summary is not None
    }
    best = [
        speedup_of(name, cell.summary)
        for name, cell in list(measured.items())[:DRAWN]
        if cell.summary is not None
    ]
    if not best:
        return []
    left_out = len(found.cells) - len(best)
    words = f"{described(best)}{f' {left_out} more are in the table.' if left_out else ''}"
    return [speedups(slug(run.name, "settings"), "settings by speedup", words, best)]
