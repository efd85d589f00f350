"""Values over an axis: lines, bands of their intervals, and marks that say what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ppdbench.errors import DataError
from ppdbench.report.pictures.drawing import LETTER, Area, Drawing, Line, PointMark, Shape
from ppdbench.report.pictures.frame import (
    Frame,
    Key,
    Scale,
    legend,
    number,
    percent,
    round_step,
    round_ticks,
)
from ppdbench.report.pictures.palette import series

HEIGHT = 190.0
MANY = 16  # points from which on marks at all of them would hide their line
FEW = 8  # marks that such a line gets about


@dataclass(frozen=True, slots=True)
class Value:
    """A measured value at a place, its interval if it has one, and what the pointer shows."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hint: str = ""
    shape: int | None = None  # of its mark, where that is not its family's


@dataclass(frozen=True, slots=True)
class Curve:
    """Values that belong together; `family` gives colour and shape, `dash` a variant of it.

    Without a label it is not in the legend; with whiskers every interval stands for itself.
    """

    label: str
    family: int
    values: Sequence[Value]
    dash: int = 0
    hollow: bool = False
    line: bool = True
    marks: bool = True
    whiskers: bool = False
    ink: str = ""  # in place of the family's colour

    @property
    def paint(self) -> str:
        """The colour of the line."""
        return self.ink or series(self.family)

    @property
    def key(self) -> Key:
        """The line's entry in a legend."""
        shape = self.family if self.marks else None
        return Key(self.label, self.paint, shape, self.hollow, self.line, self.dash)


@dataclass(frozen=True, slots=True)
class Upward:
    """The scale of y: its ends, its ticks and how its values read."""

    ticks: Sequence[float]
    tick: Callable[[float], str]
    value: Callable[[float], str]
    band: str = "95% interval"

    @property
    def scale(self) -> Scale:
        """From the first tick to the last."""
        return Scale(self.ticks[0], self.ticks[-1])


SHARES = Upward((0, 0.25, 0.5, 0.75, 1), percent, lambda share: f"{100 * share:.1f}%")


def around(
    values: Iterable[float | None],
    tick: Callable[[float], str] = number,
    value: Callable[[float], str] = "{:.3f}".format,
) -> Upward:
    """Round ticks, the first at or below all values and the last at or above them."""
    known = [found for found in values if found is not None]
    low, high = min(known), max(known)
    step = round_step(high - low or abs(low), 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Upward([n * step for n in range(first, max(last, first + 1) + 1)], tick, value)


def curves(
    name: str,
    title: str,
    description: str,
    x_label: str,
    given: Sequence[Curve],
    upward: Upward = SHARES,
    keys: Sequence[Key] = (),
    rule: float | None = None,
) -> Drawing:
    """Lines over numbers, by default shares from 0 to 100%; `rule` is drawn right across."""
    xs = sorted({value.x for curve in given for value in curve.values})
    if not xs:
        raise DataError(f"no values to draw: {title}")
    bands = any(v.low is not None for c in given if not c.whiskers for v in c.values)
    band = [Key(upward.band, "soft", 1, line=False)] if bands else []
    shapes, top = legend([*(keys or [c.key for c in given if c.label]), *band])
    whole = all(x == int(x) for x in xs)
    room = (0.5 if whole else abs(xs[0]) / 10 or 1) if len(xs) == 1 else 0.02 * (xs[-1] - xs[0])
    x_scale = Scale(xs[0] - room, xs[-1] + room)
    frame = Frame(x_scale, upward.scale, top + 8, HEIGHT)
    most = int(frame.width / (LETTER * len(number(xs[-1])) + 14))
    ticks = round_ticks(xs[0], xs[-1], min(9, most))
    ticks = [x for x in ticks if not whole or x == int(x)]
    shapes += frame.axes(ticks, upward.ticks, x_label, y_text=upward.tick)
    if rule is not None:
        shapes.append(Line([frame.at(x, rule) for x in (x_scale.low, x_scale.high)], "ink"))
    for curve in given:  # below all lines
        shapes += _intervals(curve, frame)
    for curve in given:
        shapes += _drawn(curve, frame, upward)
    return Drawing(name, title, description, frame.bottom + 38, tuple(shapes))


def _intervals(curve: Curve, frame: Frame) -> list[Shape]:
    """The intervals, where there are any."""
    ends = [(v.x, v.low, v.high) for v in curve.values if v.low is not None and v.high is not None]
    lower = [frame.at(x, low) for x, low, _ in ends]
    upper = [frame.at(x, high) for x, _, high in ends]
    if curve.whiskers:
        return [Line(pair, curve.paint, 1.4) for pair in zip(lower, upper, strict=True)]
    return [Area([*upper, *reversed(lower)], curve.paint)] if ends else []


def _drawn(curve: Curve, frame: Frame, upward: Upward) -> list[Shape]:
    points = [frame.at(v.x, v.y) for v in curve.values]
    shapes: list[Shape] = [Line(points, curve.paint, 1.8, curve.dash)] if curve.line else []
    for (x, y), value in list(zip(points, curve.values, strict=True))[_marked(curve)]:
        shape = curve.family if value.shape is None else value.shape
        hint = value.hint or _hint(curve.label, value, upward)
        shapes.append(PointMark(x, y, curve.paint, shape, curve.hollow, hint))
    return shapes


def _marked(curve: Curve) -> slice:
    """The values that get a mark: of a long line some, elsewhere than on the lines beside it."""
    if not curve.marks:
        return slice(0)
    if not curve.line or len(curve.values) <= MANY:
        return slice(None)
    every = math.ceil(len(curve.values) / FEW)
    return slice((curve.family + 2 * curve.hollow) % every, None, every)


def _hint(label: str, value: Value, upward: Upward) -> str:
    words = f"{label} at {number(value.x)}: {upward.value(value.y)}"
    if value.low is None or value.high is None:
        return words
    return f"{words} [{upward.tick(value.low)}, {upward.tick(value.high)}]"
