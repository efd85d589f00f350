"""Hidden Transfer's Figures 3 to 7 in one picture: a row for each, a panel for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ppdbench.report.pictures.curves import SHARES, Curve, Value, around, curves
from ppdbench.report.pictures.drawing import Drawing, side_by_side
from ppdbench.report.pictures.frame import Key
from ppdbench.report.pictures.palette import series

Row = Mapping[str, Any]
SHOWN = (1, 3, 5, 10)  # guesses, where layers lie along the axis
CLOSENESS = "4"
BY_LAYER = ("4", "5", "6")


def transfer_figures(points: Sequence[Row], titles: Mapping[str, str], foot: str = "") -> Drawing:
    """Draw those figures that there are points of; `titles` by their numbers, in order."""
    tasks = list(dict.fromkeys(point["task"] for point in points))
    panels = []
    for number in titles:
        own = [p for p in points if p["figure"] == number and _is_shown(p)]
        names = list(dict.fromkeys(map(_line, own)))
        for task in tasks if own else ():
            drawn = _panel(number, names, [p for p in own if p["task"] == task])
            panels.append(replace(drawn, title=f"Figure {number}, {task}: {titles[number]}"))
    return side_by_side(panels, foot, columns=len(tasks))


def _is_shown(point: Row) -> bool:
    """True if a point is drawn: of accuracies by layer only a few k, since each is a line."""
    return point["figure"] not in BY_LAYER or point["k"] in (None, *SHOWN)


def _line(point: Row) -> str:
    """Name the line of a point, its distance aside."""
    if point["figure"] == CLOSENESS:
        return f"step {point['distance']}"
    return f"k = {point['k']}" if point["figure"] in BY_LAYER else str(point["series"])


def _panel(number: str, names: Sequence[str], points: Sequence[Row]) -> Drawing:
    by_layer = number in BY_LAYER
    along = "layer" if by_layer else "k"
    lines: dict[tuple[str, int], list[Row]] = {}
    for point in sorted(points, key=lambda point: point[along]):
        lines.setdefault((_line(point), point["distance"]), []).append(point)
    distances = sorted({distance for _, distance in lines})
    several = not by_layer and len(distances) > 1
    given = [
        Curve(
            f"{name}, distance {distance}" if several else name,
            names.index(name),
            [Value(point[along], point["value"]) for point in line],
            dash=distance - 1 if several else 0,
        )
        for (name, distance), line in lines.items()
    ]
    keys = [Key(name, series(i), i) for i, name in enumerate(names)]
    if several:
        keys += [Key(f"distance {d}", "ink", None, dash=d - 1) for d in distances]
    closeness = around([0.0, *(point["value"] for point in points)])
    upward = closeness if number == CLOSENESS else SHARES
    x_label = "layers run" if by_layer else "guesses k"
    return curves(f"figure-{number}", "", "", x_label, given, upward, keys)
