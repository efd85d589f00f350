"""Drawings: a few kinds of shapes in named colours, written as SVG.

Colours are classes, so that one drawing serves light and dark pages. `raster` makes PNG and PDF
files of the same shapes.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ppdbench.files.clean import clean
from ppdbench.report.html import Child, Node, Raw, h
from ppdbench.report.pictures import palette

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
TEXT = 11.0
LETTER = 5.8  # width of one at that size, near enough to place what follows
BOLD = 7.0  # the same of bold ones, which must not be cut off
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
    dash: int = 0  # which of DASHES


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
DASHES = (None, "5 3", "1.5 2.5", "7 2 1.5 2")
N_MARKS = 5
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
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
    return plain if plain == text else f"{plain}-{digest[:6]}"


def cut_to_width(text: str, width: float, letter: float = LETTER) -> str:
    """A text cut to the width it has."""
    room = max(2, int(width / letter))
    return text if len(text) <= room else f"{text[: room - 1]}…"


GAP, ROW, SMALL = 12.0, 14.0, 8.0


def side_by_side(panels: Sequence[Drawing], foot: str = "", columns: int = 3) -> Drawing:
    """Drawings side by side under their titles, and in the corner what was measured."""
    columns = min(len(panels), 2 if len(panels) == 4 else columns)
    each = max(panel.width for panel in panels)
    width, y = columns * each + (columns - 1) * GAP, 0.0
    shapes: list[Shape] = []
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        titles = [_lines(panel.title, (each - 16) / BOLD, most=2) for panel in row]
        head = 8 + ROW * max(map(len, titles))
        for number, (panel, lines) in enumerate(zip(row, titles, strict=True)):
            x = number * (each + GAP)
            for i, line in enumerate(lines, start=1):
                shapes.append(Label(x + 8, y + ROW * i, line, "ink", bold=True))
            shapes += [_moved(shape, x, y + head) for shape in panel.shapes]
        y += head + max(panel.height for panel in row)
    for line in _lines(foot, (width - 12) / (LETTER * SMALL / TEXT)):
        y += 1.3 * SMALL
        shapes.append(Label(width - 6, y, line, anchor="end", size=SMALL))
    title = "; ".join(panel.title for panel in panels)
    words = " ".join(f"{panel.title}: {panel.description}" for panel in panels)
    return Drawing(panels[0].name, title, f"{words} {foot}".strip(), y + 6, tuple(shapes), width)


def _lines(text: str, columns: float, most: int | None = None) -> list[str]:
    """A text broken where it has to be; what is too long ends in an ellipsis."""
    return textwrap.wrap(text, max(8, int(columns)), max_lines=most, placeholder=" …")


def _moved(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line | Area):
        return replace(shape, points=[(a + x, b + y) for a, b in shape.points])
    return replace(shape, x=shape.x + x, y=shape.y + y)


def mark_corners(mark: PointMark) -> list[Point]:
    """The corners of a mark that is not round: a square, a triangle, a diamond, one upside down."""
    x, y, r = mark.x, mark.y, REACH
    return {
        1: [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
        2: [(x, y - 1.2 * r), (x + 1.2 * r, y + r), (x - 1.2 * r, y + r)],
        3: [(x, y - 1.35 * r), (x + 1.35 * r, y), (x, y + 1.35 * r), (x - 1.35 * r, y)],
        4: [(x, y + 1.2 * r), (x + 1.2 * r, y - r), (x - 1.2 * r, y - r)],
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
    written = Node(node.tag, {**node.attributes, "font-family": FONT}, everything)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{written}\n'


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
        stroke_dasharray=DASHES[line.dash % len(DASHES)],
    )


def _area(area: Area) -> Node:
    return h("path", d=_path(area.points) + "Z", class_=f"pale f-{area.paint}")


def _mark(mark: PointMark) -> Node:
    look = f"hollow s-{mark.paint}" if mark.hollow else f"f-{mark.paint}"
    corners = mark_corners(mark)
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
