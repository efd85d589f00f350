"""What pipelining promises: the speedup by exit layer, from the theorem and from the matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppdbench.report.page.drawing import Drawing, Line, PointMark, Shape
from ppdbench.report.page.frame import Frame, Key, Scale, legend, round_ticks
from ppdbench.report.page.palette import series

HEIGHT = 180.0


@dataclass(frozen=True, slots=True)
class Promise:
    """Speedups for one exit layer and k: by the theorem, and by the matches that were found."""

    layer: int
    k: int
    theorem: float
    recorded: float


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """A speedup that a `ppd` run measured, with its interval."""

    layer: int
    k: int
    value: float
    low: float | None
    high: float | None


def promises(
    name: str, title: str, description: str, given: Sequence[Promise], kept: Sequence[MeasuredGain]
) -> Drawing:
    """Lines for the theorem, marks for recorded matches, large marks for what was measured."""
    ks = sorted({p.k for p in given})
    keys = [Key(f"k = {k}", series(i), None) for i, k in enumerate(ks)]
    keys += [Key("from the matches found", "ink", 0, hollow=True, line=False)]
    keys += [Key("measured", "ink", 3, line=False)] if kept else []
    shapes, top = legend(keys)
    layers = sorted({p.layer for p in given} | {m.layer for m in kept})
    ends = [1.0, *(v for p in given for v in (p.theorem, p.recorded))]
    ends += [v for m in kept for v in (m.value, m.low, m.high) if v is not None]
    room = 0.5 if len(layers) == 1 else 0.25
    x, y = Scale(layers[0] - room, layers[-1] + room), Scale(min(ends) - 0.03, max(ends) + 0.05)
    frame = Frame(x, y, top + 4, HEIGHT)
    ticks = [t for t in round_ticks(layers[0], layers[-1], 8) if t == int(t)]
    shapes += frame.axes(
        ticks, round_ticks(y.low, y.high, 6), "exit after layer", y_text=lambda v: f"{v:g}×"
    )
    shapes.append(Line([frame.at(x.low, 1), frame.at(x.high, 1)], "ink"))
    for index, k in enumerate(ks):
        shapes += _curve([p for p in given if p.k == k], frame, series(index))
    for measured in kept:
        shapes += _kept(measured, frame)
    return Drawing(name, title, description, frame.bottom + 38, tuple(shapes))


def _curve(given: Sequence[Promise], frame: Frame, paint: str) -> list[Shape]:
    ordered = sorted(given, key=lambda p: p.layer)
    shapes: list[Shape] = [Line([frame.at(p.layer, p.theorem) for p in ordered], paint, 1.8)]
    for p in ordered:
        hint = f"k={p.k}, layer {p.layer}: theorem {p.theorem:.3f}×, matches {p.recorded:.3f}×"
        shapes.append(PointMark(*frame.at(p.layer, p.recorded), paint, 0, hollow=True, hint=hint))
    return shapes


def _kept(measured: MeasuredGain, frame: Frame) -> list[Shape]:
    x, y = frame.at(measured.layer, measured.value)
    shapes: list[Shape] = []
    if measured.low is not None and measured.high is not None:
        ends = [frame.at(measured.layer, end) for end in (measured.low, measured.high)]
        shapes.append(Line(ends, "ink", 1.4))
    hint = f"measured, k={measured.k}, layer {measured.layer}: {measured.value:.2f}×"
    return [*shapes, PointMark(x, y, "ink", 3, hint=hint)]
