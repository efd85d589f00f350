"""Stacked bars: a bar for each method, its parts one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppdbench.report.pictures.drawing import WIDTH, Box, Drawing, Label, Shape
from ppdbench.report.pictures.frame import Key, legend, number, round_ticks
from ppdbench.report.pictures.palette import series

SIDE, ROW, BAR = 10.0, 38.0, 15.0
ROOM = 26.0  # width of a part from which its number fits


def stacked(
    name: str,
    title: str,
    description: str,
    parts: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    unit: str,
) -> Drawing:
    """The parts of each bar in `unit`, and their sum beside its name."""
    keys = [Key(part, series(i), 1, line=False) for i, part in enumerate(parts)]
    shapes, top = legend(keys)
    highest = max(sum(values) for values in bars.values()) or 1.0
    scale = (WIDTH - 2 * SIDE) / highest
    for index, (label, values) in enumerate(bars.items()):
        shapes += _row(label, parts, values, top + index * ROW, scale, unit)
    bottom = top + ROW * len(bars)
    for tick in round_ticks(0, highest, 5):
        x = SIDE + tick * scale
        shapes.append(Label(x, bottom + 15, number(tick), anchor="middle" if tick else "start"))
    shapes.append(Label(SIDE, bottom + 31, unit))
    return Drawing(name, title, description, bottom + 38, tuple(shapes))


def _row(
    label: str,
    parts: Sequence[str],
    values: Sequence[float],
    top: float,
    scale: float,
    unit: str,
) -> list[Shape]:
    shapes: list[Shape] = [
        Label(SIDE, top + 12, label, "ink", bold=True),
        Label(WIDTH - SIDE, top + 12, f"{sum(values):.1f}", "ink", "end"),
    ]
    x = SIDE
    for index, (part, value) in enumerate(zip(parts, values, strict=True)):
        width = value * scale
        hint = f"{label}, {part}: {value:.2f} {unit}"
        if width > 0:
            shapes.append(Box(x, top + 17, width - 1, BAR, series(index), hint))
        if width > ROOM:
            at = x + width / 2, top + 17 + BAR / 2 + 3.6
            shapes.append(Label(*at, f"{value:.1f}", f"on-{series(index)}", "middle", 10))
        x += width
    return shapes
