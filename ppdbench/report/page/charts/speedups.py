"""Speedups as bars that start at 1: gains to the right, losses to the left, on a scale of ratios.

The whisker is the interval, the band what greedy decoding gains over itself: noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppdbench.report.page.drawing import WIDTH, Box, Drawing, Label, Line, Shape
from ppdbench.report.page.frame import Scale

SIDE, TOP, ROW, BAR = 10.0, 6.0, 38.0, 11.0
TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50)


@dataclass(frozen=True, slots=True)
class SpeedupBar:
    """One method's ratio; None where none may be shown, with the reason in `words`."""

    label: str
    words: str
    value: float | None
    low: float | None
    high: float | None
    noise: tuple[float, float] | None
    claimed: bool  # outside the noise

    @property
    def ends(self) -> list[float]:
        """Everything that has to fit in."""
        found = [self.value, self.low, self.high, *(self.noise or ())]
        return [value for value in found if value is not None]


def speedups(name: str, title: str, description: str, given: Sequence[SpeedupBar]) -> Drawing:
    """A row for each method: its name and figures above, its bar below."""
    scale = _scale(given)
    shapes: list[Shape] = []
    bottom = TOP + ROW * len(given)
    for tick in TICKS:
        if scale.low <= tick <= scale.high:
            x = _x(scale, tick)
            shapes.append(Label(x, bottom + 16, f"{tick:g}×", anchor="middle"))
    for index, speedup in enumerate(given):
        shapes += _row(speedup, scale, TOP + index * ROW)
    shapes.append(Label(SIDE, bottom + 33, "times as fast as greedy; left of 1×: slower"))
    return Drawing(name, title, description, bottom + 40, tuple(shapes))


def _scale(given: Sequence[SpeedupBar]) -> Scale:
    ends = [1.0, *(end for speedup in given for end in speedup.ends)]
    return Scale(min(0.8, 0.94 * min(ends)), max(1.25, 1.06 * max(ends)), log=True)


def _x(scale: Scale, value: float) -> float:
    return SIDE + scale.share(value) * (WIDTH - 2 * SIDE)


def _row(speedup: SpeedupBar, scale: Scale, top: float) -> list[Shape]:
    y = top + 18
    paint = _paint(speedup)
    shapes: list[Shape] = [
        Label(SIDE, top + 12, _short(speedup.label, speedup.words), "ink", bold=True),
        Label(WIDTH - SIDE, top + 12, speedup.words, paint, "end"),
    ]
    if speedup.noise:
        low, high = (_x(scale, end) for end in speedup.noise)
        hint = f"noise of greedy against itself: {_interval(*speedup.noise)}"
        shapes.append(Box(low, y - 2, high - low, BAR + 4, "soft", hint))
    one = _x(scale, 1)
    shapes.append(Line([(one, y - 3), (one, y + BAR + 3)], "ink"))
    if speedup.value is None:
        return [*shapes, Line([(SIDE, y + BAR / 2), (WIDTH - SIDE, y + BAR / 2)], "rule", 1, True)]
    end = _x(scale, speedup.value)
    left, width = min(one, end), max(1.0, abs(end - one))
    hint = f"{speedup.label}: {speedup.words}"
    look = Box(left, y, width, BAR, paint, hint) if speedup.claimed else None
    shapes.append(look or Box(left, y, width, BAR, "sunken", hint, outline="muted"))
    if speedup.low is not None and speedup.high is not None:
        shapes += _whisker(_x(scale, speedup.low), _x(scale, speedup.high), y + BAR / 2)
    return shapes


def _whisker(low: float, high: float, y: float) -> list[Shape]:
    """The interval, with a light edge that lifts it off its bar."""
    strokes = [[(low, y), (high, y)], *([(x, y - 3.5), (x, y + 3.5)] for x in (low, high))]
    edges: list[Shape] = [Line(stroke, "panel", 3.4) for stroke in strokes]
    return [*edges, *(Line(stroke, "ink", 1.3) for stroke in strokes)]


def _paint(speedup: SpeedupBar) -> str:
    if speedup.value is None:
        return "bad" if "mismatch" in speedup.words else "muted"
    if not speedup.claimed:
        return "muted"
    return "accent" if speedup.value > 1 else "loss"


def _interval(low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"


LETTER = 6.2  # bold


def _short(label: str, words: str) -> str:
    """The name, cut to what its figures leave free."""
    room = int((WIDTH - 2 * SIDE - 5.6 * len(words)) / LETTER) - 1
    return label if len(label) <= room else label[: max(1, room - 1)] + "…"
