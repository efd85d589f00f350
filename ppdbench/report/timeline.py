"""Which compute unit did what and when, for the first tokens of an output.

After Figure 2 of the paper, but measured: a lane per unit, the candidates' layers in a colour
of their own, and the token each piece of work was for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ppdbench.errors import DataError
from ppdbench.report.plots import PALETTE, plain, quiet_style

TOKENS = 8
LEAST, ROOM = 0.002, 0.02  # of the picture's width: what is drawn, and what gets a number

# What an event is called in samples: what it is called in a picture, and its colour.
KINDS = {
    "finish": ("upper layers and head: the token", PALETTE[0]),
    "early head": ("early head: the candidates", PALETTE[4]),
    "ahead": ("first layers of the candidates", PALETTE[2]),
    "missed": ("first layers of a token that was missed", PALETTE[1]),
    "adopt": ("candidate adopted, layers up to the exit", PALETTE[3]),
}
Event = Sequence[Any]  # unit, what, token, from, to (ms)


@quiet_style()
def timeline(events: Sequence[Event], title: str) -> Figure:
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
    picture = Figure(figsize=(9.0, 1.4 + 0.55 * len(units)), layout="constrained")
    axes = picture.subplots()
    axes.set_xlim(0, end - origin)
    for unit, what, token, began, ended in seen:
        _piece(axes, units.index(unit), KINDS[what][1], token, began - origin, ended - origin)
    axes.set_yticks(range(len(units)), [_lane(unit) for unit in units])
    axes.set_ylim(len(units) - 0.5, -0.5)
    axes.set_xlabel("ms")
    axes.grid(visible=False, axis="y")
    axes.set_title(plain(title))
    used = {e[1] for e in seen}
    handles = [
        Patch(color=colour, label=text) for what, (text, colour) in KINDS.items() if what in used
    ]
    picture.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7)
    return picture


def _lane(unit: str) -> str:
    return f"unit {unit}" if len(unit) == 1 else unit


def _piece(axes: Axes, lane: int, colour: str, token: int, began: float, ended: float) -> None:
    """One box, with the number of its token where there is room for it."""
    width, middle = ended - began, (began + ended) / 2
    axes.barh(lane, width, left=began, height=0.62, color=colour, edgecolor="white", linewidth=0.6)
    if width > ROOM * axes.get_xlim()[1]:
        axes.text(middle, lane, str(token), ha="center", va="center", fontsize=7, color="white")
