"""The axes of a drawing: where data lie in it, ticks at round numbers, and a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ppdbench.report.pictures.drawing import (
    LETTER,
    WIDTH,
    Label,
    Line,
    Point,
    PointMark,
    Shape,
    cut_to_width,
)

ROW = 16.0  # height of a line of the legend


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale: values between two others; `log` where ratios count instead of differences."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(value))
            if self.log
            else (self.low, self.high, value)
        )
        return (value - low) / (high - low) if high > low else 0.5


def round_step(span: float, most: int) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that parts a span into no more pieces."""
    span = span or 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(m * power for m in (1, 2, 5, 10, 20) if span / (m * power) <= most)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, no more than asked for."""
    step = round_step(high - low, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def percent(value: float) -> str:
    """A share as an axis shows it."""
    return f"{100 * value:.0f}%"


def number(value: float) -> str:
    """A number as short as it can be."""
    return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value:g}"


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot area and its two scales."""

    x: Scale
    y: Scale
    top: float
    height: float
    left: float = 38.0
    width: float = field(default=WIDTH - 38.0 - 12.0)

    def at(self, x: float, y: float) -> Point:
        """Return the place of a pair of values in the drawing."""
        return (
            self.left + self.x.share(x) * self.width,
            self.top + (1 - self.y.share(y)) * self.height,
        )

    @property
    def bottom(self) -> float:
        """The lower edge of the plot area."""
        return self.top + self.height

    def axes(
        self,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        x_label: str,
        *,
        x_text: Callable[[float], str] = number,
        y_text: Callable[[float], str] = percent,
    ) -> Iterator[Shape]:
        """Rules, ticks and the words below; what y is stands in the title."""
        right = self.left + self.width
        for value in y_ticks:
            _, y = self.at(self.x.low, value)
            yield Line([(self.left, y), (right, y)], "rule")
            yield Label(self.left - 6, y + 3.8, y_text(value), anchor="end")
        for value in x_ticks:
            x, _ = self.at(value, self.y.low)
            yield Label(x, self.bottom + 15, x_text(value), anchor="middle")
        yield Label(self.left + self.width / 2, self.bottom + 31, x_label, anchor="middle")


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    text: str
    paint: str
    shape: int | None = 0  # None: no mark
    hollow: bool = False
    line: bool = True
    dash: int = 0


def legend(
    keys: Sequence[Key], left: float = 8.0, top: float = 14.0, across: float = WIDTH
) -> tuple[list[Shape], float]:
    """Entries in as many rows as they need, and the height they take."""
    shapes: list[Shape] = []
    x, y = left, top
    for key in keys:
        sign = 22.0 if key.line else 9.0
        text = cut_to_width(key.text, across - left - sign - 12)
        width = sign + 6 + LETTER * len(text) + 12
        if x > left and x + width > across:
            x, y = left, y + ROW
        if key.line:
            shapes.append(Line([(x, y - 4), (x + sign, y - 4)], key.paint, 2, key.dash))
        if key.shape is not None:
            shapes.append(PointMark(x + sign / 2, y - 4, key.paint, key.shape, key.hollow))
        shapes.append(Label(x + sign + 6, y, text, "ink"))
        x += width
    return shapes, y + 8 - (top - 14)
