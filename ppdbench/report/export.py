"""One table, five ways to write it: terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ppdbench.files.whole import write_whole
from ppdbench.report import paths

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled table; `lead` stands above it, `notes` below. Numbers stay numbers until written.

    `digits` says how many decimals the floats of a column get (4 where it says nothing);
    columns in `percent` are fractions that people read as per cent. `groups` are numbers of
    neighbouring columns that belong together, the first of them those that name a row: what is
    too wide is drawn in parts, each with the names.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    digits: Mapping[str, int] | None = None
    percent: frozenset[str] = frozenset()
    lead: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.header)} heads")

    def text(self, column: str, value: Cell) -> str:
        """How a cell reads."""
        if value is None:
            return "-"
        if isinstance(value, float):
            places = (self.digits or {}).get(column, 2 if column in self.percent else 4)
            return f"{100 * value:.{places}f}%" if column in self.percent else f"{value:.{places}f}"
        return str(value)

    def text_rows(self) -> list[list[str]]:
        """All cells as they read."""
        return [
            [self.text(column, cell) for column, cell in zip(self.header, row, strict=True)]
            for row in self.rows
        ]

    def is_number(self, index: int) -> bool:
        """Whether a column holds numbers, which are set flush right."""
        cells = [row[index] for row in self.rows if row[index] is not None]
        return bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)


GAP = 2  # blanks between two columns
NARROWEST = 8  # columns of text may be wrapped down to this, but not within words
NAME = 26  # but names in the first column, which are there to be typed again, only to this


def print_sheets(sheets: Sequence[Sheet], console: Console | None = None) -> None:
    """Draw tables for people, as wide as their terminal is (80 columns when piped).

    What does not fit without cutting numbers is drawn in parts where the table says how to part
    it, and else written row by row, one cell per line.
    """
    console = console or Console(soft_wrap=False)
    for sheet in sheets:
        least = _least_widths(sheet)
        room = console.width - 2 - GAP * (len(least) - 1)
        if sheet.lead:
            _print_heading(sheet, console)
        if sum(least) <= room:
            console.print(_drawn(sheet, _widened(sheet, least, room)))
        elif parts := _parts(sheet, least, console.width - 2):
            for part in parts:
                room = console.width - 2 - GAP * (len(part.header) - 1)
                console.print(_drawn(part, _widened(part, _least_widths(part), room)))
        else:
            _print_stacked(sheet, console)
        for note in sheet.notes:
            console.print(Text(note, style="dim"))
        console.print()


def _print_heading(sheet: Sheet, console: Console) -> None:
    """A title with a lead, which must not be folded to the width of the table."""
    console.print(Text(sheet.title, style="bold"))
    for line in sheet.lead:
        console.print(Text(line, style="dim"))


def _parts(sheet: Sheet, least: Sequence[int], room: int) -> list[Sheet]:
    """The groups of columns that fit beside the names, part by part; none where not even one does.

    Only the first part has the title.
    """
    places = iter(range(len(sheet.header)))
    names, *groups = [list(islice(places, n)) for n in sheet.groups] or [[]]
    taken = [least[i] + GAP for i in range(len(sheet.header))]
    parts: list[list[int]] = []
    for group in groups:
        if parts and sum(taken[i] for i in (*names, *parts[-1], *group)) - GAP <= room:
            parts[-1] += group
        elif sum(taken[i] for i in (*names, *group)) - GAP <= room:
            parts.append(list(group))
        else:
            return []
    return [_part(sheet, names + part, first=part is parts[0]) for part in parts]


def _part(sheet: Sheet, columns: Sequence[int], *, first: bool) -> Sheet:
    """Some of the columns."""
    return replace(
        sheet,
        title=sheet.title if first else "",
        header=tuple(sheet.header[i] for i in columns),
        rows=tuple(tuple(row[i] for i in columns) for row in sheet.rows),
        groups=(sheet.groups[0], len(columns) - sheet.groups[0]),
    )


def _columns(sheet: Sheet) -> list[tuple[str, ...]]:
    return list(zip(sheet.header, *sheet.text_rows(), strict=True))


def _longest(column: Sequence[str]) -> int:
    return max((len(line) for cell in column for line in cell.split("\n")), default=0)


def _least_widths(sheet: Sheet) -> list[int]:
    """How narrow each column may get: numbers whole, names nearly so, text and heads by words.

    What is grouped are numbers too, or pairs of them.
    """
    widths = []
    names = sheet.groups[0] if sheet.groups else len(sheet.header)
    for index, column in enumerate(_columns(sheet)):
        longest, word = _longest(column), _longest_word(column)
        if sheet.is_number(index) or index >= names:
            limit = max(_longest_word(column[:1]), _longest(column[1:]))
        else:
            limit = NAME if index == 0 else max(NARROWEST, word)
        widths.append(min(longest, limit))
    return widths


def _longest_word(cells: Sequence[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split() or [""])


def _widened(sheet: Sheet, least: Sequence[int], room: int) -> list[int]:
    """The room that is left goes to the columns that would wrap most."""
    longest = [_longest(column) for column in _columns(sheet)]
    widths = list(least)
    while sum(widths) < room and widths != longest:
        missing = [want - have for want, have in zip(longest, widths, strict=True)]
        widths[missing.index(max(missing))] += 1
    return widths


def _drawn(sheet: Sheet, widths: Sequence[int]) -> RichTable:
    drawn = RichTable(
        title=None if sheet.lead or not sheet.title else Text(sheet.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, (column, width) in enumerate(zip(sheet.header, widths, strict=True)):
        drawn.add_column(
            Text(column),
            justify="right" if sheet.is_number(index) else "left",
            width=width,
            overflow="fold",
        )
    for row in sheet.text_rows():
        drawn.add_row(*map(Text, row))
    return drawn


def _print_stacked(sheet: Sheet, console: Console) -> None:
    if not sheet.lead:
        console.print(Text(sheet.title, style="bold"))
    header = [column.replace("\n", " ") for column in sheet.header]
    longest = max(map(len, header))
    for row in sheet.text_rows():
        console.print()
        for column, cell in zip(header, row, strict=True):
            console.print(Text(f"{column:<{longest}}  {cell}"))


def to_csv(sheets: Sequence[Sheet]) -> str:
    """Comma-separated values in full precision; tables follow each other after a blank line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for index, sheet in enumerate(sheets):
        if index:
            out.write("\n")
        writer.writerow(sheet.header)
        writer.writerows(["" if cell is None else cell for cell in row] for row in sheet.rows)
    return out.getvalue()


def _one_line(cell: str) -> str:
    """A cell that cannot end its row or its column; what is parted at a hyphen is joined again."""
    return " ".join(cell.replace("|", "\\|").replace("-\n", "-").splitlines())


def to_markdown(sheets: Sequence[Sheet]) -> str:
    """GitHub tables."""
    blocks = []
    for sheet in sheets:
        marks = ["---:" if sheet.is_number(i) else "---" for i in range(len(sheet.header))]
        rows = [list(sheet.header), marks, *sheet.text_rows()]
        body = "\n".join("| " + " | ".join(_one_line(cell) for cell in row) + " |" for row in rows)
        notes = "".join(f"\n\n{note}" for note in sheet.notes)
        lead = "".join(f"{line}\n\n" for line in sheet.lead)
        blocks.append(f"### {sheet.title}\n\n{lead}{body}{notes}\n")
    return "\n".join(blocks)


LATEX_ESCAPES = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
    }
)


def _caption(sheet: Sheet) -> str:
    return " ".join([f"{sheet.title}.", *sheet.lead]) if sheet.lead else sheet.title


def to_latex(sheets: Sequence[Sheet]) -> str:
    """booktabs tables."""
    blocks = []
    for sheet in sheets:
        spec = "".join("r" if sheet.is_number(i) else "l" for i in range(len(sheet.header)))
        lines = [
            " & ".join(cell.translate(LATEX_ESCAPES) for cell in row) + r" \\"
            for row in [list(sheet.header), *sheet.text_rows()]
        ]
        notes = "".join(f"\n{note.translate(LATEX_ESCAPES)}\\\\" for note in sheet.notes)
        blocks.append(
            "\\begin{table}\n\\centering\n"
            f"\\caption{{{_caption(sheet).translate(LATEX_ESCAPES)}}}\n"
            f"\\begin{{tabular}}{{{spec}}}\n\\toprule\n{lines[0]}\n\\midrule\n"
            + "\n".join(lines[1:])
            + f"\n\\bottomrule\n\\end{{tabular}}{notes}\n\\end{{table}}\n"
        )
    return "\n".join(blocks)


def to_json(value: Any) -> str:
    """Strict JSON: a NaN here would be a bug, not a number."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


WRITERS = {"csv": to_csv, "markdown": to_markdown, "latex": to_latex}
FORM_OF = {".json": "json", ".csv": "csv", ".md": "markdown", ".tex": "latex"}


def emit(sheets: Sequence[Sheet], json_value: Any, form: str) -> None:
    """Write the result of a command to stdout in the form asked for."""
    if form == "table":
        print_sheets(sheets)
        return
    # Plain writing, so that nothing is wrapped or coloured on its way into a file.
    Console(soft_wrap=True).file.write(_text(sheets, json_value, form))


def _text(sheets: Sequence[Sheet], json_value: Any, form: str) -> str:
    return to_json(json_value) if form == "json" else WRITERS[form](sheets)


def check_path(path: str | Path) -> Path:
    """Refuse a file that `write` could not write."""
    return paths.check_path(path, FORM_OF, "table")


def write(path: str | Path, sheets: Sequence[Sheet], json_value: Any) -> None:
    """Write the result of a command to a file, in the form that its suffix names."""
    path = check_path(path)
    text = _text(sheets, json_value, FORM_OF[path.suffix.lower()])
    write_whole(path, text, make_folder=True)
