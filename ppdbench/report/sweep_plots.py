"""Pictures of a sweep: a heat map of two options, or a curve for one."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ppdbench.bench.sweep_summary import Cell, Swept
from ppdbench.report import sweep_map
from ppdbench.report.plots import INK, PALETTE, grid_axes, plain, quiet_style, sign, square
from ppdbench.report.sweep_map import cell_text, kind, left_behind, map_title
from ppdbench.report.sweep_tables import shown, title

COLOURS = colormaps["RdBu"]
STRONGEST = 2.0  # a speedup, or a slowdown, of at least this much has the full colour
REMARKS = {"best": "best", "slower": "slower"}
WORDS = {**sweep_map.WORDS, "no difference": "no difference"}
UNTIMED = "#e6e6e6"
FOOT = 0.32  # inches
CHARACTER = 0.062  # inches of the smallest type


@quiet_style()
def sweep_picture(found: Swept) -> Figure:
    """The first two options against each other, or one as a curve."""
    picture = _curve(found) if len(found.axes) == 1 else _heat(found)
    some_left = any(left_behind(found, cell) for cell in found.cells)
    text = title(found) + (". In brackets: on fewer examples" if some_left else "")
    columns = int(picture.get_figwidth() / CHARACTER)
    return sign(picture, textwrap.fill(text, columns, max_lines=2, placeholder=" ..."))


def _heat(found: Swept) -> Figure:
    down, across = list(found.axes)[:2]
    rows, columns = found.axes[down], found.axes[across]
    size = (1.4 + 0.95 * max(len(columns), 4), 1.3 + 0.5 * len(rows))
    picture = _blank(*size)
    axes = picture.subplots()
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            _draw_cell(axes, found, found.best_at({down: row, across: column}), x, y)
    grid_axes(axes, len(columns), len(rows))
    axes.set_xticks(range(len(columns)), _names(columns))
    axes.set_yticks(range(len(rows)), _names(rows))
    axes.set_xlabel(plain(across))
    axes.set_ylabel(plain(down))
    picture.suptitle(plain(map_title(found)), fontsize=10, fontweight="bold")
    return picture


def _draw_cell(axes: Axes, found: Swept, cell: Cell, x: int, y: int) -> None:
    strength = 0.0
    if cell.speedup is not None and cell.standing != "no difference":
        strength = max(-1.0, min(1.0, math.log(cell.speedup, STRONGEST)))
    colour: Any = UNTIMED if cell.speedup is None else COLOURS(0.5 + 0.42 * strength)
    axes.add_patch(square(x, y, colour))
    remark = REMARKS.get(kind(found, cell), "")
    text = f"{cell_text(found, cell, WORDS)}\n{remark}".strip()
    ink = "white" if abs(strength) > 0.75 else INK
    weight = "bold" if remark == "best" else "normal"
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=ink, fontweight=weight)


def _curve(found: Swept) -> Figure:
    """Speedup with its interval by the option's value; a ring marks the best."""
    (name,) = found.axes
    values = found.axes[name]
    picture = _blank(6.0, 3.6)
    axes = picture.subplots()
    axes.axhline(1, color=INK, linewidth=0.8, linestyle="--")
    cells = [found.best_at({name: value}) for value in values]
    timed = [(x, cell.speedup) for x, cell in enumerate(cells) if cell.speedup is not None]
    if timed:
        axes.plot(*zip(*timed, strict=True), color=PALETTE[0], marker="o")
    for x, cell in enumerate(cells):
        _draw_point(axes, found, cell, x)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xticks(range(len(values)), _names(values))
    axes.set_xlabel(plain(name))
    axes.set_ylabel("speedup over greedy, 95%")
    axes.set_title(plain(map_title(found)))
    return picture


def _draw_point(axes: Axes, found: Swept, cell: Cell, x: int) -> None:
    summary, value = cell.summary, cell.speedup
    if summary is not None and summary["speedup_low"] is not None:
        axes.vlines(x, summary["speedup_low"], summary["speedup_high"], color=PALETTE[0])
    if value is not None and kind(found, cell) == "best":
        axes.plot(x, value, "o", color=PALETTE[1], markersize=10, markerfacecolor="none")
    text, place = cell_text(found, cell, WORDS), (x, 0.0 if value is None else value)
    axes.annotate(text, place, xytext=(8, 5), textcoords="offset points", fontsize=7)


def _blank(width: float, height: float) -> Figure:
    """A figure that leaves its lower edge to the line that says what was measured."""
    foot = FOOT / height
    layout = ConstrainedLayoutEngine(rect=(0, foot, 1, 1 - foot))
    return Figure(figsize=(width, height), layout=layout)


def _names(values: Sequence[Any]) -> list[str]:
    return [plain(shown(value)) for value in values]
