"""Drawings as PNG and PDF, by matplotlib; the colours are those of light pages.

Everything goes through figure objects, never pyplot, so that drawing leaves nothing behind.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Circle, Patch, Polygon, Rectangle

from ppdbench.files.clean import SUBSTITUTE, clean
from ppdbench.report.pictures.drawing import (
    REACH,
    Area,
    Box,
    Drawing,
    Label,
    Line,
    PointMark,
    Shape,
    mark_corners,
)
from ppdbench.report.pictures.palette import COLOURS

INCH = 72.0  # units of a drawing
WIDER = 0.92  # matplotlib's font is that much wider than those of pages
DPI = 150
LARGEST_PIXELS = 60_000  # Agg's limit is 2**16 on either side
FONT = "DejaVu Sans"  # comes with matplotlib, so pictures look alike everywhere
STYLE = {"font.family": FONT, "text.parse_math": False}  # a dollar sign is a dollar sign
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
DASHES = ("-", (0, (5, 3)), (0, (1.2, 2)), (0, (7, 2, 1.5, 2)))


def image_bytes(drawing: Drawing, form: str) -> bytes:
    """The bytes of a file, the same for the same drawing."""
    data = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        made = matplotlib_figure(drawing)
        dpi = min(DPI, LARGEST_PIXELS / max(made.get_size_inches()))
        made.savefig(data, format=form, dpi=dpi, metadata=METADATA[form])
    return data.getvalue()


def matplotlib_figure(drawing: Drawing) -> Figure:
    """The drawing's shapes, one unit to a point."""
    made = Figure(figsize=(drawing.width / INCH, drawing.height / INCH))
    axes = made.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    for order, shape in enumerate(drawing.shapes):
        _draw(axes, shape, order)
    return made


@cache
def _code_points(font: str) -> frozenset[int]:
    return frozenset(get_font(findfont(font)).get_charmap())


def drawable(text: object) -> str:
    """Text with a visible substitute for whatever the font cannot draw."""
    known, text = _code_points(FONT), clean(str(text), "picture")
    return "".join(c if c.isprintable() and ord(c) in known else SUBSTITUTE for c in text)


def _draw(axes: Axes, shape: Shape, order: int) -> None:
    colour = COLOURS[shape.paint][0]
    if isinstance(shape, Label):
        anchor = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        text = axes.text(
            shape.x, shape.y, drawable(shape.text), ha=anchor, color=colour, zorder=order
        )
        text.set_fontsize(shape.size * WIDER)
        text.set_fontweight("bold" if shape.bold else "normal")
    elif isinstance(shape, Line):
        dash = DASHES[shape.dash % len(DASHES)]
        xs, ys = zip(*shape.points, strict=True)
        axes.plot(xs, ys, linestyle=dash, color=colour, lw=shape.width, zorder=order)
    else:
        patch = _patch(shape, colour)
        patch.set_zorder(order)
        axes.add_patch(patch)


def _patch(shape: Box | Area | PointMark, colour: str) -> Patch:
    if isinstance(shape, Box):
        edge = COLOURS[shape.outline][0] if shape.outline else "none"
        size = max(0.0, shape.width), max(0.0, shape.height)
        return Rectangle((shape.x, shape.y), *size, fc=colour, ec=edge, lw=0.8)
    if isinstance(shape, Area):
        return Polygon(list(shape.points), fc=colour, ec="none", alpha=0.16)
    fill = COLOURS["panel"][0] if shape.hollow else colour
    look: dict[str, Any] = {"fc": fill, "ec": colour, "lw": 1.2}
    corners = mark_corners(shape)
    return Polygon(corners, **look) if corners else Circle((shape.x, shape.y), REACH, **look)
