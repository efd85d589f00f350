"""Lines over a whole number: match rate by layer, accuracy by guesses, closeness by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ppdbench.report.page.drawing import Area, Drawing, Line, PointMark, Shape
from ppdbench.report.page.frame import Frame, Key, Scale, legend, number, percent, round_ticks
from ppdbench.report.page.palette import series

HEIGHT = 190.0
MANY = 16  # points from which on marks would hide their line


@dataclass(frozen=True, slots=True)
class Value:
    """What was measured at a place, and its interval if it has one."""

    x: int
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Values that belong together; `family` gives the colour, `dashed` a variant of it."""

    label: str
    family: int
    values: Sequence[Value]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Upward:
    """What lies along y: its ends, its ticks and how its values read."""

    ticks: Sequence[float]
    tick: Callable[[float], str]
    value: Callable[[float], str]

    @property
    def scale(self) -> Scale:
        """From the first tick to the last."""
        return Scale(self.ticks[0], self.ticks[-1])


SHARES = Upward((0, 0.25, 0.5, 0.75, 1), percent, lambda share: f"{100 * share:.1f}%")


def curves(
    name: str,
    title: str,
    description: str,
    x_label: str,
    given: Sequence[Curve],
    upward: Upward = SHARES,
) -> Drawing:
    """Lines over a whole number, by default shares from 0 to 100%."""
    keys = [
        Key(c.label, series(c.family), c.family, hollow=c.dashed, dashed=c.dashed) for c in given
    ]
    shapes, top = legend(keys)
    xs = sorted({value.x for curve in given for value in curve.values})
    room = 0.5 if len(xs) == 1 else 0
    frame = Frame(Scale(xs[0] - room, xs[-1] + room), upward.scale, top + 8, HEIGHT)
    ticks = [x for x in round_ticks(xs[0], xs[-1], 9) if x == int(x)]
    shapes += frame.axes(ticks, upward.ticks, x_label, y_text=upward.tick)
    for curve in given:  # below all lines
        shapes += _band(curve, frame)
    for curve in given:
        shapes += _drawn(curve, frame, upward)
    return Drawing(name, title, description, frame.bottom + 38, tuple(shapes))


def _band(curve: Curve, frame: Frame) -> list[Shape]:
    """The intervals, where there are any."""
    upper = [frame.at(v.x, v.high) for v in curve.values if v.high is not None]
    lower = [frame.at(v.x, v.low) for v in reversed(curve.values) if v.low is not None]
    return [Area([*upper, *lower], series(curve.family))] if upper else []


def _drawn(curve: Curve, frame: Frame, upward: Upward) -> list[Shape]:
    paint, values = series(curve.family), curve.values
    points = [frame.at(v.x, v.y) for v in values]
    shapes: list[Shape] = [Line(points, paint, 1.8, curve.dashed)]
    if len(values) <= MANY:
        shapes += [
            PointMark(x, y, paint, curve.family, curve.dashed, _hint(curve, value, upward))
            for (x, y), value in zip(points, values, strict=True)
        ]
    return shapes


def _hint(curve: Curve, value: Value, upward: Upward) -> str:
    words = f"{curve.label} at {number(value.x)}: {upward.value(value.y)}"
    if value.low is None or value.high is None:
        return words
    return f"{words} [{upward.tick(value.low)}, {upward.tick(value.high)}]"
