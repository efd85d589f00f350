"""Hidden Transfer's Figures 3 to 7 in one picture: a row for each, a panel for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ppdbench.report.plots import INK, MARKERS, PALETTE, plain, quiet_style

Row = Mapping[str, Any]

DASHES = ("-", "--", ":", "-.")  # by distance, where a panel has several
SHOWN = (1, 3, 5, 10)  # guesses, where layers lie along the axis
CLOSENESS = "4"
BY_LAYER = ("4", "5", "6")
WIDTH, HEIGHT, WORDS_WIDTH = 3.2, 2.5, 2.2  # inches


@quiet_style()
def transfer_figures(points: Sequence[Row], titles: Mapping[str, str]) -> Figure:
    """Those figures that there are points of; `titles` by their numbers, in order."""
    figures = [number for number in titles if any(p["figure"] == number for p in points)]
    tasks = list(dict.fromkeys(point["task"] for point in points))
    size = (WIDTH * len(tasks) + WORDS_WIDTH, HEIGHT * len(figures))
    picture = Figure(figsize=size, layout="constrained")
    parts = picture.subfigures(len(figures), squeeze=False)[:, 0]
    for part, number in zip(parts, figures, strict=True):
        part.suptitle(f"Figure {number}: {titles[number]}", fontsize=9, x=0.01, ha="left")
        own = [p for p in points if p["figure"] == number and _is_shown(p)]
        names = list(dict.fromkeys(map(_line, own)))
        colours = dict(zip(names, cycle(PALETTE)))
        marks = dict(zip(names, cycle(MARKERS)))
        panels = part.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, task in zip(panels, tasks, strict=True):
            axes.set_title(plain(task))
            _draw(axes, [p for p in own if p["task"] == task], colours, marks)
            _name_axes(axes, number)
        panels[0].set_ylabel("cosine" if number == CLOSENESS else "among the first k")
        part.legend(handles=_keys(own, colours, marks), loc="outside right center", fontsize=7)
    return picture


def _is_shown(point: Row) -> bool:
    """Of accuracies by layer a few k, since each is a line."""
    return point["figure"] not in BY_LAYER or point["k"] in (None, *SHOWN)


def _line(point: Row) -> str:
    """What the line of a point is called, its distance aside."""
    if point["figure"] == CLOSENESS:
        return f"step {point['distance']}"
    return f"k = {point['k']}" if point["figure"] in BY_LAYER else str(point["series"])


def _draw(
    axes: Axes, points: Sequence[Row], colours: Mapping[str, str], marks: Mapping[str, str]
) -> None:
    along = "layer" if points and points[0]["figure"] in BY_LAYER else "k"
    lines: dict[tuple[str, int], list[Row]] = {}
    for point in points:
        lines.setdefault((_line(point), point["distance"]), []).append(point)
    for (name, distance), line in lines.items():
        line.sort(key=lambda point: point[along])
        axes.plot(
            [point[along] for point in line],
            [point["value"] for point in line],
            color=colours[name],
            marker=marks[name],
            markersize=3.5,
            linestyle="-" if along == "layer" else _dashes(distance),
        )


def _dashes(distance: int) -> str:
    return DASHES[(distance - 1) % len(DASHES)]


def _name_axes(axes: Axes, number: str) -> None:
    axes.set_xlabel("layers run" if number in BY_LAYER else "guesses k")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if number != CLOSENESS:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))


def _keys(
    points: Sequence[Row], colours: Mapping[str, str], marks: Mapping[str, str]
) -> list[Line2D]:
    """Colours by name, and dashes by distance where those differ within a line's name."""
    keys = [
        Line2D([], [], color=c, marker=marks[name], markersize=3.5, label=plain(name))
        for name, c in colours.items()
    ]
    distances = sorted({point["distance"] for point in points})
    if points[0]["figure"] not in BY_LAYER and len(distances) > 1:
        keys += [
            Line2D([], [], color=INK, linestyle=_dashes(d), label=f"distance {d}")
            for d in distances
        ]
    return keys
