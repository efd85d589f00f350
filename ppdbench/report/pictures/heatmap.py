"""Values by row and column, each cell with its words and its colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ppdbench.report.pictures.drawing import LETTER, WIDTH, Box, Drawing, Label, Shape

RIGHT, TOP = 8.0, 6.0
TALLEST, LOWEST = 22.0, 13.0
WIDEST = 62.0
SMALL = 0.88  # of the usual letters, those in cells


@dataclass(frozen=True, slots=True)
class HeatmapCell:
    """Its colour, a step of a ramp; what stands in it and what the pointer shows."""

    paint: str
    text: str
    hint: str


def heatmap(
    name: str,
    title: str,
    description: str,
    cells: Mapping[tuple[str, str], HeatmapCell],
    column_label: str,
    whole: bool = False,
) -> Drawing:
    """Rows and columns in the order in which `cells` names them.

    `whole`: every cell has room for its words, however wide that makes the drawing.
    """
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    left = 14 + LETTER * max(map(len, rows))
    width = min(WIDEST, (WIDTH - left - RIGHT) / len(columns))
    if whole:
        width = max(width, SMALL * LETTER * max(len(cell.text) for cell in cells.values()) + 3)
    height = TALLEST if len(rows) <= 12 else LOWEST
    shapes: list[Shape] = []
    for i, row in enumerate(rows):
        y = TOP + i * height
        shapes.append(Label(left - 6, y + height / 2 + 3.8, row, anchor="end"))
        for j, column in enumerate(columns):
            if (row, column) in cells:
                at = (left + j * width, y, width, height)
                shapes += _drawn(at, cells[row, column])
    bottom = TOP + len(rows) * height
    shapes += _names(columns, left, width, bottom)
    shapes.append(Label(left, bottom + 31, column_label))
    across = max(WIDTH, left + width * len(columns) + RIGHT)
    return Drawing(name, title, description, bottom + 38, tuple(shapes), across)


def _drawn(at: tuple[float, float, float, float], cell: HeatmapCell) -> list[Shape]:
    x, y, width, height = at
    shapes: list[Shape] = [Box(x, y, width - 1, height - 1, cell.paint, cell.hint)]
    if width >= SMALL * LETTER * len(cell.text) + 3:
        middle = x + (width - 1) / 2, y + height / 2 + 3.2
        shapes.append(Label(*middle, cell.text, f"on-{cell.paint}", "middle", 9.5))
    return shapes


def _names(columns: Sequence[str], left: float, width: float, bottom: float) -> list[Shape]:
    """Write as many names below as there is room for."""
    room = LETTER * max(map(len, columns)) + 6
    every = max(1, math.ceil(room / width))
    return [
        Label(left + (j + 0.5) * width, bottom + 14, column, anchor="middle", size=10)
        for j, column in enumerate(columns)
        if j % every == 0
    ]
