"""Lines with their intervals over a whole number: match rate by layer, accuracy by guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppdbench.report.page.drawing import Area, Drawing, Line, Mark, Shape
from ppdbench.report.page.frame import Frame, Key, Scale, legend, number, percent, round_ticks
from ppdbench.report.page.palette import series

HEIGHT = 190.0
MANY = 16  # points from which on marks would hide their line


@dataclass(frozen=True, slots=True)
class Value:
    """A measured share at a place, and its interval."""

    x: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Values that belong together; `family` gives the colour, `dashed` a variant of it."""

    label: str
    family: int
    values: Sequence[Value]
    dashed: bool = False


def curves(
    name: str, title: str, description: str, x_label: str, given: Sequence[Curve]
) -> Drawing:
    """Shares from 0 to 100% over a whole number."""
    keys = [
        Key(c.label, series(c.family), c.family, hollow=c.dashed, dashed=c.dashed) for c in given
    ]
    shapes, top = legend(keys)
    xs = sorted({value.x for curve in given for value in curve.values})
    room = 0.5 if len(xs) == 1 else 0
    frame = Frame(Scale(xs[0] - room, xs[-1] + room), Scale(0, 1), top + 8, HEIGHT)
    ticks = [x for x in round_ticks(xs[0], xs[-1], 9) if x == int(x)]
    shapes += frame.axes(ticks, [0, 0.25, 0.5, 0.75, 1], x_label)
    shapes += [_band(curve, frame) for curve in given]  # below all lines
    for curve in given:
        shapes += _drawn(curve, frame)
    return Drawing(name, title, description, frame.bottom + 38, tuple(shapes))


def _band(curve: Curve, frame: Frame) -> Area:
    upper = [frame.at(v.x, v.high) for v in curve.values]
    lower = [frame.at(v.x, v.low) for v in reversed(curve.values)]
    return Area([*upper, *lower], series(curve.family))


def _drawn(curve: Curve, frame: Frame) -> list[Shape]:
    paint, values = series(curve.family), curve.values
    points = [frame.at(v.x, v.share) for v in values]
    shapes: list[Shape] = [Line(points, paint, 1.8, curve.dashed)]
    if len(values) <= MANY:
        shapes += [
            Mark(x, y, paint, curve.family, curve.dashed, _hint(curve, value))
            for (x, y), value in zip(points, values, strict=True)
        ]
    return shapes


def _hint(curve: Curve, value: Value) -> str:
    interval = f"[{percent(value.low)}, {percent(value.high)}]"
    return f"{curve.label} at {number(value.x)}: {100 * value.share:.1f}% {interval}"
