"""Parts of a drawing, for tests to look at."""

from __future__ import annotations

from ppdbench.report.pictures.drawing import Box, Drawing, Label, Line, PointMark


def texts(drawing: Drawing) -> list[str]:
    """Every line of text, in the order in which they are drawn."""
    return [shape.text for shape in drawing.shapes if isinstance(shape, Label)]


def boxes(drawing: Drawing, paint: str = "") -> list[Box]:
    """Boxes, all or those of a colour."""
    found = [shape for shape in drawing.shapes if isinstance(shape, Box)]
    return [box for box in found if paint in ("", box.paint)]


def marks(drawing: Drawing) -> list[PointMark]:
    """Marks that stand for a value, and none of a legend."""
    return [shape for shape in drawing.shapes if isinstance(shape, PointMark) and shape.hint]


def curves(drawing: Drawing) -> list[Line]:
    """Lines in the colours of series that are no part of a legend."""
    lines = [shape for shape in drawing.shapes if isinstance(shape, Line)]
    return [line for line in lines if line.paint.startswith("series") and line.width < 2]
