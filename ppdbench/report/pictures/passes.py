"""A picture of what passes cost by their rows."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.pass_curve import PassCurve, SideTimes
from ppdbench.report.curve_tables import curve_label, limit_words
from ppdbench.report.pictures.curves import Curve, Value, around, curves
from ppdbench.report.pictures.drawing import Drawing, side_by_side


def curve_picture(found: Sequence[PassCurve]) -> Drawing:
    """Draw rows against time for each curve: ours, transformers', and the limit."""
    return side_by_side([_panel(each) for each in found])


def _panel(found: PassCurve) -> Drawing:
    rows = [point.rows for point in found.points]
    ours = _line("ours", 0, rows, [point.ours for point in found.points])
    stock = _line("transformers", 1, rows, [point.stock for point in found.points])
    ends = [Value(n, found.reading_ms) for n in dict.fromkeys((rows[0], rows[-1]))]
    limit = Curve("reading the weights once", 2, ends, dash=1, marks=False)
    given = [ours, stock, limit]
    highest = max(value.y for curve in given for value in curve.values)
    words = limit_words(found)
    return curves(
        "pass-curve",
        f"Time of a pass, ms: {curve_label(found)}",
        f"{words[0].upper()}{words[1:]}.",
        "rows of a pass",
        given,
        around([0.0, highest]),
    )


def _line(label: str, family: int, rows: Sequence[int], times: Sequence[SideTimes]) -> Curve:
    return Curve(label, family, [Value(n, t.median) for n, t in zip(rows, times, strict=True)])
