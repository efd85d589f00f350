"""The timeline of compute units for the first tokens of an output.

After Figure 2 of the paper, but measured: a lane per unit, the candidates' layers in a colour
of their own, and the token each piece of work was for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppdbench.errors import DataError
from ppdbench.report.pictures.drawing import Box, Drawing, Label, Line, Shape, side_by_side
from ppdbench.report.pictures.frame import Key, legend, number, round_ticks
from ppdbench.report.pictures.palette import series

TOKENS = 8
LEAST, ROOM = 0.002, 0.02  # of the picture's width: what is drawn, and what gets a number
LEFT, RIGHT, LANE, WIDTH = 48.0, 12.0, 40.0, 648.0

# What an event is called in samples: what it is called in a picture; each has its colour.
KINDS = {
    "finish": "upper layers and head: the token",
    "early head": "early head: the candidates",
    "ahead": "first layers of the candidates",
    "missed": "first layers of a token that was missed",
    "adopt": "candidate adopted, layers up to the exit",
}
PAINTS = dict(zip(KINDS, map(series, (0, 4, 2, 1, 3)), strict=True))
Event = Sequence[Any]  # unit, what, token, from, to (ms)


def timeline(events: Sequence[Event], title: str) -> Drawing:
    """The tokens after the first one, which the prefill is mixed with.

    What one unit did for them while the other still had the prompt is left out as well.
    """
    shown = [e for e in events if e[1] in KINDS and 2 <= e[2] < 2 + TOKENS]
    upper = {e[0]: e[3] for e in reversed(shown) if e[1] == "finish"}
    first = min(upper.values(), default=0.0)
    shown = [e for e in shown if e[0] in upper or e[4] > first]
    if not shown:
        raise DataError("no timeline to draw: the run has no output of two tokens by ppd units")
    origin, end = min(e[3] for e in shown), max(e[4] for e in shown)
    seen = [e for e in shown if e[4] - e[3] > LEAST * (end - origin)]
    units = sorted({e[0] for e in seen})
    used = {e[1] for e in seen}
    keys = [Key(text, PAINTS[k], 1, line=False) for k, text in KINDS.items() if k in used]
    shapes, top = legend(keys, across=WIDTH)
    bottom, scale = top + LANE * len(units), (WIDTH - LEFT - RIGHT) / (end - origin)
    for ms in round_ticks(0, end - origin, 10):
        x = LEFT + ms * scale
        shapes.append(Line([(x, top), (x, bottom)], "rule"))
        shapes.append(Label(x, bottom + 15, number(ms), anchor="middle"))
    for lane, unit in enumerate(units):
        name = f"unit {unit}" if len(unit) == 1 else unit
        shapes.append(Label(LEFT - 8, top + LANE * (lane + 0.5) + 4, name, anchor="end"))
    for unit, what, token, began, ended in seen:
        at = LEFT + (began - origin) * scale, top + LANE * units.index(unit) + 8
        shapes += _piece(at, (ended - began) * scale, what, token)
    shapes.append(Label(LEFT, bottom + 30, "ms"))
    words = f"{end - origin:.1f} ms on {len(units)} units; numbers are of tokens."
    return side_by_side([Drawing("timeline", title, words, bottom + 36, tuple(shapes), WIDTH)])


def _piece(at: tuple[float, float], width: float, what: str, token: int) -> list[Shape]:
    """One box, with the number of its token where there is room for it."""
    x, y = at
    edge = min(0.6, width / 3)
    paint = PAINTS[what]
    box = Box(x, y, width - edge, LANE - 16, paint, f"token {token}: {KINDS[what]}")
    if width <= ROOM * (WIDTH - LEFT - RIGHT):
        return [box]
    label = Label(x + width / 2, y + 16, str(token), f"on-{paint}", "middle", 9.0)
    return [box, label]
