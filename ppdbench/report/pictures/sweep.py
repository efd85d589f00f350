"""Pictures of a sweep: two options against each other, or a bar for each value of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from ppdbench.bench.grid import TEMPERATURE
from ppdbench.bench.sweep_summary import Cell, Swept
from ppdbench.report import sweep_map, sweep_tables
from ppdbench.report.pictures import heatmap
from ppdbench.report.pictures.curves import Curve, Value, curves
from ppdbench.report.pictures.drawing import Drawing, side_by_side, slug
from ppdbench.report.pictures.palette import heat
from ppdbench.report.pictures.speedups import SpeedupBar, described, speedup_of, speedups

STRONGEST = 2.0  # a speedup, or a slowdown, of at least this much has the full colour


def sweep_picture(found: Swept) -> Drawing:
    """Draw all there is to see of a sweep, and below it what was measured."""
    said = sweep_tables.title(found)
    by_temperature = [acceptance_curves("sweep", found)] if TEMPERATURE in found.axes else []
    if len(found.axes) == 1:
        return side_by_side([*by_temperature, option_bars("sweep", found)], said)
    marks = ", ".join(sweep_map.marks_legend(found))
    return side_by_side(
        [*by_temperature, option_map("sweep", found, whole=True)], f"{marks}. {said}"
    )


def acceptance_curves(name: str, found: Swept) -> Drawing:
    """The share of drafted tokens that was kept over the temperature, a line for each setting."""
    lines: dict[str, list[Value]] = {}
    places = {name: values.index for name, values in found.axes.items()}
    for cell in sorted(found.cells, key=lambda cell: [places[k](v) for k, v in cell.at.items()]):
        kept = None if cell.summary is None else cell.summary["accepted_per_proposed"]
        if kept is not None:
            others = {key: value for key, value in cell.at.items() if key != TEMPERATURE}
            label = sweep_tables.setting(replace(cell, at=others)) or "acceptance"
            lines.setdefault(label, []).append(Value(cell.at[TEMPERATURE], kept))
    return curves(
        slug(name, "acceptance"),
        "Drafted tokens that were kept, by temperature",
        "Each point is a cell of the sweep.",
        "temperature",
        [
            Curve(label, family, sorted(values, key=lambda value: value.x))
            for family, (label, values) in enumerate(lines.items())
        ],
    )


def option_map(name: str, found: Swept, whole: bool = False) -> Drawing:
    """The first two options against each other, of further ones the best."""
    (down, rows), (across, columns) = list(found.axes.items())[:2]
    return heatmap.heatmap(
        slug(name, "sweep"),
        sweep_map.map_title(found),
        f"Rows: {down}, columns: {across}.",
        {
            (str(sweep_tables.shown(row)), str(sweep_tables.shown(column))): _drawn(
                found.best_at({down: row, across: column}), found
            )
            for row, column in product(rows, columns)
        },
        f"{across}; rows: {down}",
        whole,
    )


def _drawn(cell: Cell, found: Swept) -> heatmap.HeatmapCell:
    strength = 0.0
    if cell.speedup is not None and cell.standing != "no difference":
        strength = math.log(cell.speedup, STRONGEST)
    mark = sweep_map.MARKS[sweep_map.cell_kind(found, cell)]
    text = f"{mark}{sweep_map.cell_text(found, cell)}"
    paint = heat(abs(strength), "cold" if strength < 0 else "heat")
    return heatmap.HeatmapCell(paint, text, f"{sweep_tables.setting(cell)}: {text}")


def option_bars(name: str, found: Swept) -> Drawing:
    """The speedup of each value of the only option, in their order."""
    (option,) = found.axes
    cells = [found.best_at({option: value}) for value in found.axes[option]]
    return _bars(name, sweep_map.map_title(found), [_speedup(cell) for cell in cells])


def best_settings(name: str, found: Swept, most: int) -> Drawing | None:
    """The fastest settings, and how many more there are."""
    best = [_speedup(cell) for cell in found.cells if cell.summary is not None][:most]
    left_out = len(found.cells) - len(best)
    more = f" {left_out} more are in the table." if left_out else ""
    return _bars(name, "settings by speedup", best, more) if best else None


def _speedup(cell: Cell) -> SpeedupBar:
    name = sweep_tables.setting(cell)
    if cell.summary is None:
        return SpeedupBar(name, cell.standing, None, None, None, None, claimed=False)
    return speedup_of(name, cell.summary)


def _bars(name: str, title: str, given: Sequence[SpeedupBar], more: str = "") -> Drawing:
    return speedups(slug(name, "settings"), title, described(given) + more, given)
