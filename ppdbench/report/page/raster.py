"""The page's drawings as PNG files, by matplotlib; the colours are those of light pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch, Polygon, Rectangle

from ppdbench.report import plots
from ppdbench.report.page.drawing import (
    REACH,
    Area,
    Box,
    Drawing,
    Label,
    Line,
    Point,
    PointMark,
    Shape,
    outline,
)
from ppdbench.report.page.palette import COLOURS

INCH = 72.0  # units of a drawing
TITLE = 22.0  # units above the drawing
WIDER = 0.92  # matplotlib's font is that much wider than those of pages


def save_png(drawing: Drawing, path: Path) -> None:
    """Write the drawing, under its title."""
    with plots.quiet_style():
        height = drawing.height + TITLE
        figure = Figure(figsize=(drawing.width / INCH, height / INCH))
        axes = figure.add_axes((0, 0, 1, drawing.height / height))
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        axes.axis("off")
        for order, shape in enumerate(drawing.shapes):
            _draw(axes, shape, order)
        top = 1 - 0.72 * TITLE / height
        title = plots.plain(drawing.title)
        figure.text(8 / drawing.width, top, title, fontsize=9.5, fontweight="bold")
    plots.save(figure, path)


def _draw(axes: Axes, shape: Shape, order: int) -> None:
    if isinstance(shape, Label):
        _write(axes, shape, order)
    elif isinstance(shape, Line):
        xs, ys = zip(*shape.points, strict=True)
        look = "--" if shape.dashed else "-"
        axes.plot(xs, ys, look, color=_colour(shape.paint), lw=shape.width, zorder=order)
    else:
        patch = _patch(shape)
        patch.set_zorder(order)
        axes.add_patch(patch)


def _write(axes: Axes, label: Label, order: int) -> None:
    axes.text(
        label.x,
        label.y,
        plots.plain(label.text),
        color=_colour(label.paint),
        fontsize=label.size * WIDER,
        ha={"start": "left", "middle": "center", "end": "right"}[label.anchor],
        fontweight="bold" if label.bold else "normal",
        zorder=order,
    )


def _patch(shape: Box | Area | PointMark) -> Patch:
    if isinstance(shape, Box):
        edge = _colour(shape.outline) if shape.outline else "none"
        size = max(0.0, shape.width), max(0.0, shape.height)
        return Rectangle((shape.x, shape.y), *size, fc=_colour(shape.paint), ec=edge, lw=0.8)
    if isinstance(shape, Area):
        return _polygon(shape.points, fc=_colour(shape.paint), ec="none", alpha=0.16)
    colour = _colour(shape.paint)
    fill = _colour("panel") if shape.hollow else colour
    corners = outline(shape)
    if corners:
        return _polygon(corners, fc=fill, ec=colour, lw=1.2)
    return Circle((shape.x, shape.y), REACH, fc=fill, ec=colour, lw=1.2)


def _polygon(points: Sequence[Point], **look: object) -> Polygon:
    return Polygon(list(points), closed=True, **look)


def _colour(paint: str) -> str:
    return COLOURS[paint][0]
