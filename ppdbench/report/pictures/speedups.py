"""Speedups as bars that start at 1: gains to the right, losses to the left, on a scale of ratios.

The whisker is the interval, the band what greedy decoding gains over itself: noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.bench.claims import no_difference
from ppdbench.report import evidence
from ppdbench.report.pictures.drawing import (
    LETTER,
    WIDTH,
    Box,
    Drawing,
    Label,
    Line,
    Shape,
    cut_to_width,
)
from ppdbench.report.pictures.frame import Scale

SIDE, TOP, ROW, BAR = 10.0, 6.0, 38.0, 11.0
INEXACT = "inexact"
NAMED = 5  # methods in a sentence
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
        """The ends of all that has to fit in."""
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
    name = cut_to_width(speedup.label, WIDTH - 2 * SIDE - LETTER * len(speedup.words) - 8, 6.2)
    shapes: list[Shape] = [
        Label(SIDE, top + 12, name, "ink", bold=True),
        Label(WIDTH - SIDE, top + 12, speedup.words, paint, "end"),
    ]
    if speedup.noise:
        low, high = (_x(scale, end) for end in speedup.noise)
        hint = f"noise of greedy against itself: {evidence.interval(*speedup.noise)}"
        shapes.append(Box(low, y - 2, high - low, BAR + 4, "soft", hint))
    one = _x(scale, 1)
    shapes.append(Line([(one, y - 3), (one, y + BAR + 3)], "ink"))
    if speedup.value is None:
        return [*shapes, Line([(SIDE, y + BAR / 2), (WIDTH - SIDE, y + BAR / 2)], "rule", dash=1)]
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


def speedup_of(label: str, summary: Mapping[str, Any]) -> SpeedupBar:
    """A row of the picture, in the words that the tables use."""
    value, low, high = (summary[f"speedup{end}"] for end in ("", "_low", "_high"))
    noise = summary["noise_low"], summary["noise_high"]
    greedy = summary["method"] == "greedy"
    return SpeedupBar(
        label,
        _words(summary, value),
        value,
        low,
        high,
        None if None in noise else noise,
        claimed=value is not None and not greedy and not no_difference(summary),
    )


def _words(summary: Mapping[str, Any], value: float | None) -> str:
    if (n := summary["mismatch"]) and summary["exact"]:
        return f"{n} mismatch{'es' * (n > 1)}: no speedup"
    if value is None:
        return str(summary["speedup_withheld"] or "no result")
    text, interval = evidence.speedup_cells(summary)
    mark = "" if summary["exact"] else f"{INEXACT}, "
    return f"{mark}{text.replace('x', '×')}{'' if interval == '-' else f' {interval}'}"


def described(given: Sequence[SpeedupBar]) -> str:
    """The same in a sentence."""
    if all(s.value is None for s in given):
        return "No speedup can be told."
    claimed = [s for s in given if s.claimed and s.value is not None]
    faster = [_named(s) for s in claimed if s.value and s.value > 1]
    slower = [_named(s) for s in claimed if s.value and s.value <= 1]
    words = [f"Faster: {_listed(faster)}." if faster else "Nothing is faster beyond noise."]
    words += [f"Slower: {_listed(slower)}."] if slower else []
    return " ".join(words)


def _named(speedup: SpeedupBar) -> str:
    mark = " (inexact)" if speedup.words.startswith(INEXACT) else ""
    return f"{speedup.label} {speedup.value:.2f}×{mark}"


def _listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
