"""Losses of a training by tokens seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.errors import DataError
from ppdbench.report.pictures.curves import Curve, Value, around, curves
from ppdbench.report.pictures.drawing import Drawing, side_by_side

NO_LOSSES = {"step", "learning_rate", "tokens", "tokens_per_s", "gradient_norm"}


def training_curves(lines: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw each loss, smoothed over about a fiftieth of the run."""
    if not lines:
        raise DataError("no steps to draw")
    # What is trained in phases has losses that other phases do not have.
    names = [n for n in dict.fromkeys(n for line in lines for n in line) if n not in NO_LOSSES]
    given = [Curve(name, i, _smooth(name, lines), marks=False) for i, name in enumerate(names)]
    upward = around([value.y for curve in given for value in curve.values])
    ends = ", ".join(f"{curve.label} {curve.values[-1].y:.2f}" for curve in given)
    title = "loss (nats per token)"
    return side_by_side(
        [curves("training", title, f"At the end: {ends}.", "tokens seen", given, upward)]
    )


def _smooth(name: str, lines: Sequence[Mapping[str, Any]]) -> list[Value]:
    """The mean of the last values at each place."""
    points = [(line["tokens"], line[name]) for line in lines if name in line]
    width = max(1, len(points) // 50)
    found = []
    for i, (tokens, _) in enumerate(points):
        part = [loss for _, loss in points[max(0, i + 1 - width) : i + 1]]
        found.append(Value(tokens, sum(part) / len(part)))
    return found
