"""The cells of a sweep in a terminal: a map of two options, or bars for one.

Colour only repeats what the marks say. Of further options the best values are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from rich.console import Console
from rich.text import Text

from ppdbench.bench.sweep_summary import Cell, Swept
from ppdbench.report.sweep_tables import shown

MARKS = {
    "best": "★",
    "faster": "▲",
    "no difference": "≈",
    "slower": "▼",
    "mismatch": "✗",
    "failed": "!",
    "not run": "!",
    "not timed": "·",
    "times do not add up": "≠",
    "not measured": "·",
    "too few examples": "·",
}
WORDS = {
    "no difference": "same",
    "mismatch": "differs",
    "failed": "failed",
    "not run": "not run",
    "not timed": "no time",
    "times do not add up": "bad sum",
    "not measured": "no time",
    "too few examples": "too few",
}
STYLES = {
    "best": "bold white on #0b5394",
    "faster": "black on #9fc5e8",
    "slower": "black on #f9cb9c",
    "mismatch": "bold white on #990000",
}
BAR = 40


def print_map(found: Swept, console: Console) -> None:
    """Draw the first two options against each other; one alone as bars."""
    console.print(Text(map_title(found), style="bold"))
    draw = _bars if len(found.axes) == 1 else _blocks
    for line in draw(found, console.width):
        console.print(line, no_wrap=True, overflow="crop", soft_wrap=False)
    console.print(Text("   ".join(marks_legend(found)), style="dim"))
    console.print()


def map_title(found: Swept) -> str:
    """Return a title: what is drawn, and what was maximised over."""
    names = list(found.axes)
    over = f", the best over {', '.join(names[2:])}" if len(names) > 2 else ""
    return f"Speedup over greedy by {' and '.join(names[:2])}{over}"


def cell_kind(found: Swept, cell: Cell) -> str:
    """Name the way a cell is drawn."""
    return "best" if found.leaders and cell is found.leaders[0] else cell.standing


def cell_text(found: Swept, cell: Cell, words: Mapping[str, str] = WORDS) -> str:
    """The speedup or a word, in brackets where it is of fewer examples than the best one's."""
    text = words.get(cell.standing) or f"{cell.speedup:.2f}x"
    return f"({text})" if left_behind(found, cell) else text


def left_behind(found: Swept, cell: Cell) -> bool:
    """True if a cell was measured on fewer examples than the best."""
    return cell.speedup is not None and cell not in found.leaders


def _blocks(found: Swept, width: int) -> Iterator[Text]:
    """Rows of the map, in as many blocks of columns as the width makes necessary."""
    down, across = list(found.axes)[:2]
    heads = [str(shown(value)) for value in found.axes[across]]
    texts = [_marked(found, cell) for cell in found.cells]
    column = max(map(len, [*heads, *texts])) + 1
    label = max(len(down), *(len(str(shown(value))) for value in found.axes[down])) + 2
    fit = max(1, (width - label) // column)
    for start in range(0, len(heads), fit):
        values = found.axes[across][start : start + fit]
        yield Text(f"{'':{label}}{across}", style="dim")
        yield Text(f"{down:<{label}}") + Text("".join(f"{shown(v)!s:>{column}}" for v in values))
        for value in found.axes[down]:
            row = [found.best_at({down: value, across: other}) for other in values]
            yield _row(found, str(shown(value)).rjust(label - 2), row, column)
        yield Text()


def _row(found: Swept, label: str, cells: Sequence[Cell], column: int) -> Text:
    line = Text(f"{label}  ")
    for cell in cells:
        line.append(" ")
        line.append(_marked(found, cell).rjust(column - 1), STYLES.get(cell_kind(found, cell), ""))
    return line


def _marked(found: Swept, cell: Cell) -> str:
    return f"{MARKS[cell_kind(found, cell)]}{cell_text(found, cell)}"


def _bars(found: Swept, width: int) -> Iterator[Text]:
    """One bar per value; its end is the speedup, and a mark stands where greedy is."""
    (name,) = found.axes
    heads = {value: f"{name}={shown(value)}" for value in found.axes[name]}
    label = max(map(len, heads.values()))
    room = max(8, min(BAR, width - label - 14))
    most = max([1.0, *(cell.speedup or 0.0 for cell in found.cells)])
    for value, head in heads.items():
        cell = found.best_at({name: value})
        bar = _bar(cell.speedup or 0.0, most, room)
        style = STYLES.get(cell_kind(found, cell), "").rpartition(" ")[2]
        line = Text(f"{head:<{label}}  ")
        yield line.append(bar, style).append(f"  {_marked(found, cell)}")
    yield Text()


def _bar(speedup: float, most: float, room: int) -> str:
    length, greedy = round(speedup / most * room), round(room / most) - 1
    drawn: list[str] = ["█" if i < length else " " for i in range(room)]
    drawn[greedy] = "│" if drawn[greedy] == " " else "▌"
    return "".join(drawn)


def _drawn(found: Swept) -> list[Cell]:
    """The cells that can be seen: of those at one place the best."""
    names = list(found.axes)[:2]
    places = product(*(found.axes[name] for name in names))
    return [found.best_at(dict(zip(names, place, strict=True))) for place in places]


def marks_legend(found: Swept) -> list[str]:
    """The marks that can be seen, and what they say."""
    drawn = _drawn(found)
    there = {cell_kind(found, cell) for cell in drawn}
    names = {"no difference": "same: no difference beyond noise"}
    words = [f"{mark} {names.get(name, name)}" for name, mark in MARKS.items() if name in there]
    if any(left_behind(found, cell) for cell in drawn):
        words.append("( ) measured on fewer examples")
    if len(found.axes) == 1:
        words.append("│ greedy")
    return words
