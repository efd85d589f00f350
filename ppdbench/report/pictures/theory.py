"""Pictures of what pipelining costs and promises: latency against compute, speedup by exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ppdbench.errors import DataError
from ppdbench.report.pictures.curves import Curve, Value, around, curves
from ppdbench.report.pictures.drawing import Drawing, side_by_side
from ppdbench.report.pictures.frame import Key
from ppdbench.report.pictures.palette import series
from ppdbench.stats import grouped
from ppdbench.theory import FigurePoint

COMPUTE = {
    3: "compute per time unit (processes busy, greedy = 1)",
    4: "compute per token (greedy = 1)",
}


def tradeoff_picture(
    points_by_series: Mapping[str, Sequence[FigurePoint]],
    figure: Literal[3, 4] | None = None,
    foot: str = "",
) -> Drawing:
    """Latency against compute, as in Figure 3 or 4 of the paper, or both side by side.

    Of several series the first is the backdrop, drawn hollow: give the paper's points there.
    """
    points = [point for series in points_by_series.values() for point in series]
    if not points:
        raise DataError("no points to draw")
    tasks = list(dict.fromkeys(point.task for point in points))
    ks = sorted({point.k for point in points})
    several = len(points_by_series) > 1
    keys = [Key(task, series(i), None) for i, task in enumerate(tasks)]
    if any(point.trained for point in points):
        heads = ("model's own head", "trained head")
        keys += [Key(head, "ink", None, dash=dash) for dash, head in enumerate(heads)]
    keys += [Key(f"k = {k}", "ink", i, line=False) for i, k in enumerate(ks)]
    for number, name in enumerate(points_by_series):
        keys.append(Key(name, "ink", 0, hollow=several and number == 0, line=False))
    by_k = {
        name: sorted(group, key=lambda point: point.k) for name, group in points_by_series.items()
    }
    panels = []
    for n in (3, 4) if figure is None else (figure,):
        given = [
            Curve(
                "",
                tasks.index(task),
                [_placed(name, point, n, ks) for point in of],
                dash=trained,
                hollow=several and number == 0,
            )
            for number, (name, ordered) in enumerate(by_k.items())
            for (task, trained), of in grouped(ordered, "task", "trained").items()
        ]
        words = f"{len(points)} points of {', '.join(points_by_series)}."
        upward = around([point.latency_per_token for point in points])
        title = f"Figure {n}: latency per token (greedy = 1)"
        panels.append(curves(f"figure-{n}", title, words, COMPUTE[n], given, upward, keys))
    return side_by_side(panels, foot)


def _placed(series: str, point: FigurePoint, figure: int, ks: Sequence[int]) -> Value:
    x, y = point.figure_3 if figure == 3 else point.figure_4
    head = ", trained head" if point.trained else ""
    hint = f"{series}, {point.task}, k = {point.k}{head}: {x:.3f}, {y:.3f}"
    return Value(x, y, hint=hint, shape=ks.index(point.k))


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
    lines = []
    ks = sorted({p.k for p in given})
    for i, k in enumerate(ks):
        own = sorted((p for p in given if p.k == k), key=lambda p: p.layer)
        line = [Value(p.layer, p.theorem) for p in own]
        found = [Value(p.layer, p.recorded, hint=_promised(p), shape=0) for p in own]
        lines.append(Curve(f"k = {k}", i, line, marks=False))
        lines.append(Curve("", i, found, line=False, hollow=True))
    measured = [Value(m.layer, m.value, m.low, m.high, _measured(m)) for m in kept]
    lines.append(Curve("", 3, measured, line=False, whiskers=True, ink="ink"))
    keys = [curve.key for curve in lines if curve.label]
    keys.append(Key("from the matches found", "ink", 0, hollow=True, line=False))
    keys += [Key("measured", "ink", 3, line=False)] if kept else []
    ends = [1.0, *(v for p in given for v in (p.theorem, p.recorded))]
    upward = around([*ends, *(v for m in kept for v in (m.value, m.low, m.high))], "{:g}×".format)
    return curves(name, title, description, "exit after layer", lines, upward, keys, rule=1)


def _promised(p: Promise) -> str:
    return f"k={p.k}, layer {p.layer}: theorem {p.theorem:.3f}×, matches {p.recorded:.3f}×"


def _measured(kept: MeasuredGain) -> str:
    return f"measured, k={kept.k}, layer {kept.layer}: {kept.value:.2f}×"
