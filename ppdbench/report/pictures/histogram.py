"""Histograms: how often something was counted, a bar for each number."""

from __future__ import annotations

from collections.abc import Mapping

from ppdbench.report.pictures.drawing import Box, Drawing, Label, Line, PointMark, Shape
from ppdbench.report.pictures.frame import Frame, Key, Scale, legend, round_ticks

HEIGHT = 120.0
LAST = 16  # what is more than this shares the last bar


def histogram(
    name: str,
    title: str,
    description: str,
    counts: Mapping[int, int],
    x_label: str,
    expected: Mapping[int, float] | None = None,
) -> Drawing:
    """Shares of the counts; `expected` ones as marks above their bars."""
    total = sum(counts.values())
    shares = _gathered({n: count / total for n, count in counts.items()})
    expectation = _gathered(expected or {})
    first, last = min(shares), max(*shares, first_plus(shares))
    shapes: list[Shape] = []
    top = 12.0
    if expected:
        keys = [
            Key("counted", "accent", 1, line=False),
            Key("if independent", "loss", 3, line=False),
        ]
        shapes, top = legend(keys)
    highest = max(*shares.values(), *expectation.values(), 0.05)
    frame = Frame(Scale(first - 0.6, last + 0.6), Scale(0, 1.18 * highest), top + 4, HEIGHT)
    shapes += frame.axes([], round_ticks(0, highest, 4), x_label)
    width = 0.72 * frame.width / (last - first + 1.2)
    for n in range(first, last + 1):
        shapes += _bar(frame, n, shares.get(n, 0.0), width, bar_name(n))
    shapes += [PointMark(*frame.at(n, share), "loss", 3) for n, share in expectation.items()]
    mean = sum(n * count for n, count in counts.items()) / total
    shapes += _mean(frame, mean) if first <= mean <= last else []
    return Drawing(name, title, description, frame.bottom + 38, tuple(shapes))


def first_plus(shares: Mapping[int, float]) -> int:
    """A picture has room for a few bars, however few there are."""
    return min(shares) + 3


def bar_name(n: int) -> str:
    """Name a bar."""
    return f"{n}+" if n == LAST else str(n)


def _gathered(shares: Mapping[int, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for n, share in sorted(shares.items()):
        found[min(n, LAST)] = found.get(min(n, LAST), 0.0) + share
    return found


def _bar(frame: Frame, n: int, share: float, width: float, text: str) -> list[Shape]:
    x, y = frame.at(n, share)
    hint = f"{text}: {100 * share:.1f}%"
    return [
        Box(x - width / 2, y, width, frame.bottom - y, "accent", hint),
        Label(x, frame.bottom + 15, text, anchor="middle"),
    ]


def _mean(frame: Frame, mean: float) -> list[Shape]:
    x, _ = frame.at(mean, 0)
    near = "end" if x > frame.left + 0.7 * frame.width else "start"
    beside = x - 4 if near == "end" else x + 4
    return [
        Line([(x, frame.top - 4), (x, frame.bottom)], "ink", 1.2, dash=1),
        Label(beside, frame.top + 4, f"mean {mean:.2f}", "ink", near),
    ]
