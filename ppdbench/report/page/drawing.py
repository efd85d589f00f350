"""Drawings: a few kinds of shapes in named colours, written as SVG.

Colours are classes, so that one drawing serves light and dark pages. `raster` makes PNG files
of the same shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ppdbench.files.clean import clean
from ppdbench.report.page import palette
from ppdbench.report.page.html import Child, Node, Raw, h

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
TEXT = 11.0
WIDTH = 340.0  # of every drawing: what a phone shows without shrinking text
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; `hint` is what the pointer shows."""

    x: float
    y: float
    width: float
    height: float
    paint: str
    hint: str = ""
    outline: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[Point]
    paint: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """A filled outline, pale where it lies behind a line."""

    points: Sequence[Point]
    paint: str


@dataclass(frozen=True, slots=True)
class PointMark:
    """A point of a series; its shape says which, for those who do not see its colour."""

    x: float
    y: float
    paint: str
    shape: int = 0
    hollow: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text."""

    x: float
    y: float
    text: str
    paint: str = "muted"
    anchor: str = "start"  # start, middle or end
    size: float = TEXT
    bold: bool = False


Shape = Box | Line | Area | PointMark | Label
N_MARKS = 4
REACH = 3.4  # of a mark, from its middle


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture with a name for files, and in words what it shows."""

    name: str
    title: str
    description: str
    height: float
    shapes: tuple[Shape, ...]
    width: float = WIDTH


def slug(*parts: str) -> str:
    """A name that files and ids may have; what it had to change is told apart by a hash."""
    text = "-".join(parts)
    plain = clean(text.replace(":", "_"), "file name")
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def outline(mark: PointMark) -> list[Point]:
    """The corners of a mark that is not round: a square, a triangle, a diamond."""
    x, y, r = mark.x, mark.y, REACH
    return {
        1: [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
        2: [(x, y - 1.2 * r), (x + 1.2 * r, y + r), (x - 1.2 * r, y + r)],
        3: [(x, y - 1.35 * r), (x + 1.35 * r, y), (x, y + 1.35 * r), (x - 1.35 * r, y)],
    }.get(mark.shape % N_MARKS, [])


def svg(drawing: Drawing) -> Node:
    """The drawing as part of a page."""
    title, words = f"{drawing.name}-title", f"{drawing.name}-words"
    return h(
        "svg",
        h("title", drawing.title, id=title),
        h("desc", drawing.description, id=words),
        _written(drawing.shapes),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
        role="img",
        aria_labelledby=title,
        aria_describedby=words,
    )


def svg_file(drawing: Drawing) -> str:
    """The drawing as a file that needs nothing else, light or dark as its reader's screen."""
    style = (
        f":root{{{palette.variables(dark=False)}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{palette.variables(dark=True)}}}}}"
        f"{palette.paints()}{STYLE}"
    )
    ground = Box(0, 0, drawing.width, drawing.height, "panel")
    node = svg(drawing)
    everything = (h("style", Raw(style)), _written([ground]), *node.children)
    return f"{Node(node.tag, {**node.attributes, 'font-family': FONT}, everything)}\n"


# What all drawings share, in the page and in files.
STYLE = (
    "svg{font-size:11px}.line{fill:none}.pale{opacity:.16}"
    ".hollow{fill:var(--panel);stroke-width:1.6}"
)


def _written(shapes: Sequence[Shape]) -> Iterator[Child]:
    for shape in shapes:
        match shape:
            case Box():
                yield _box(shape)
            case Line():
                yield _line(shape)
            case Area():
                yield _area(shape)
            case PointMark():
                yield _mark(shape)
            case Label():
                yield _label(shape)


def _box(box: Box) -> Node:
    return h(
        "rect",
        *_hint(box.hint),
        x=box.x,
        y=box.y,
        width=max(0.0, box.width),
        height=max(0.0, box.height),
        class_=f"f-{box.paint}" + (f" s-{box.outline}" if box.outline else ""),
    )


def _line(line: Line) -> Node:
    return h(
        "path",
        d=_path(line.points),
        class_=f"line s-{line.paint}",
        stroke_width=line.width,
        stroke_dasharray="5 3" if line.dashed else None,
    )


def _area(area: Area) -> Node:
    return h("path", d=_path(area.points) + "Z", class_=f"pale f-{area.paint}")


def _mark(mark: PointMark) -> Node:
    look = f"hollow s-{mark.paint}" if mark.hollow else f"f-{mark.paint}"
    corners = outline(mark)
    if corners:
        return h("path", *_hint(mark.hint), d=_path(corners) + "Z", class_=look)
    return h("circle", *_hint(mark.hint), cx=mark.x, cy=mark.y, r=REACH, class_=look)


def _label(label: Label) -> Node:
    return h(
        "text",
        label.text,
        x=label.x,
        y=label.y,
        class_=f"f-{label.paint}",
        text_anchor=None if label.anchor == "start" else label.anchor,
        font_size=None if label.size == TEXT else label.size,
        font_weight=600 if label.bold else None,
    )


def _hint(text: str) -> list[Node]:
    return [h("title", text)] if text else []


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
