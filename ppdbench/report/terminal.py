"""Tables as people read them: within the width of their terminal, or as wide as they are.

No cell is ever broken over lines. What does not fit is drawn in parts where a table says how to
part it, then with fewer columns, then with shortened texts; and a line below says so. Where
nobody's terminal sets a width, as in a pipe, everything is written as wide as it is.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from ppdbench.errors import counted
from ppdbench.report.console import Terminal
from ppdbench.report.sheet import Sheet, one_line

GAP = 2  # blanks between two columns
MARGIN = 1  # and before the first
SHORTEST = 16  # texts are cut down to this before columns are left out
NAME = 26  # but names in the first column, which are there to be typed again, only to this
UNLIMITED = 1_000_000
INDENT = 5  # of sentences below their rows
PLAIN_SIGNS = str.maketrans({"─": "-", "…": "~"})  # of one letter each
REMEDY = "--format csv or a wider terminal"


def people(*, stderr: bool = False) -> Console:
    """Return the console for people; NO_COLOR leaves no codes at all, bold and dim included."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Terminal(stderr=stderr, soft_wrap=False, color_system=None if plain else "auto")


def print_sheets(sheets: Sequence[Sheet], console: Console | None = None) -> None:
    """Draw tables on a console, or on stdout: a terminal's width, none when piped."""
    out = console or people()
    width = out.width if console else printed_width()
    for sheet in (sheet.cleaned("terminal") for sheet in sheets):
        for line in table_lines(sheet, width):
            out.print(_written(line, out.encoding), soft_wrap=True)
        out.print()


def _written(line: Text, encoding: str) -> Text:
    """The line with signs that its encoding has: escapes for each would break the columns."""
    if encoding.startswith("utf"):
        return line
    return Text(line.plain.translate(PLAIN_SIGNS), style=line.style)


def printed_width() -> int:
    """The width of the terminal that is printed to; none when piped."""
    out = people()
    return out.width if out.is_terminal else UNLIMITED


def table_lines(sheet: Sheet, width: int) -> Iterator[Text]:
    """The lines of a table: title and lead, the columns that fit, notes."""
    yield from _told([sheet.title], "bold", width)
    yield from _told(sheet.lead, "dim", width)
    fitting = _fitting(sheet, width)
    for part in fitting.parts:
        if sheet.title:
            yield Text()
        yield from _stacked(part, width) if fitting.stacked else _table(part, width)
    notes = (*fitting.remarks, *sheet.notes)
    if notes:
        yield Text()
    yield from _told(notes, "dim", width)


def _told(texts: Sequence[str], style: str, width: int) -> Iterator[Text]:
    """Break sentences into lines between words."""
    for text in filter(None, texts):
        for line in textwrap.wrap(text, width, break_on_hyphens=False) or [""]:
            yield Text(line, style=style)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The columns of a table that are drawn, and what is said of the rest."""

    parts: tuple[Sheet, ...]
    remarks: tuple[str, ...] = ()
    stacked: bool = False


def _fitting(sheet: Sheet, width: int) -> _Fitting:
    """The first of these that fits: all of it, its parts, its one row cell by cell, some of it."""
    if _fits(sheet, width):
        return _Fitting((sheet,))
    if parts := _parts(sheet, width):
        return _Fitting(tuple(parts))
    if len(sheet.rows) == 1:
        return _Fitting((sheet,), stacked=True)
    return _reduced(sheet, width)


def _reduced(sheet: Sheet, width: int) -> _Fitting:
    """Less of the table, and what is missing."""
    left_out: list[str] = []

    def leave_out(column: str) -> None:
        nonlocal sheet
        sheet = sheet.without(column)
        left_out.append(one_line(column))

    while sheet.spare and not (_fits(sheet, width) or _fits_without_prose(sheet, width)):
        leave_out(sheet.spare[0])
    if _fits_without_prose(sheet, width):
        return _Fitting((sheet,), tuple(_missing(left_out)))
    whole = sheet
    sheet = _shortened(whole, width)
    while len(sheet.header) > 1 and not _fits(sheet, width):
        leave_out(sheet.header[-1])
        whole = whole.without(whole.header[-1])
        sheet = _shortened(whole, width)
    cut = ["Texts that end in … are longer: " + REMEDY + "."] * (sheet != whole)
    return _Fitting((sheet,), (*_missing(left_out), *cut))


def _missing(left_out: Sequence[str]) -> Iterator[str]:
    if left_out:
        columns = counted(len(left_out), "more column")
        yield f"{columns} ({', '.join(left_out)}): {REMEDY}."


def _shortened(sheet: Sheet, width: int) -> Sheet:
    """The longest texts cut, as far as that is needed and they can be."""
    least = _least_widths(sheet)
    for index in sorted(range(len(least)), key=lambda i: -least[i]):
        excess = _taken(least) - width
        limit = max(least[index] - excess, NAME if index == 0 else SHORTEST)
        if excess > 0 and not sheet.is_number(index) and limit < least[index]:
            sheet = _cut(sheet, index, limit)
            least[index] = limit
    return sheet


def _cut(sheet: Sheet, index: int, limit: int) -> Sheet:
    texts = [row[index] for row in sheet.text_rows()]
    rows = (
        (*row[:index], cut_to_columns(text, limit), *row[index + 1 :])
        for row, text in zip(sheet.rows, texts, strict=True)
    )
    return replace(sheet, rows=tuple(rows))


def cut_to_columns(text: str, width: int) -> str:
    """Text in at most `width` columns; an ellipsis says that it goes on."""
    if cell_len(text) <= width:
        return text
    return (chop_cells(text, width - 1)[0] if width > 1 else "") + "…"


def _parts(sheet: Sheet, width: int) -> list[Sheet]:
    """The groups of columns that fit beside the names, part by part; none where one does not."""
    places = iter(range(len(sheet.header)))
    names, *groups = [list(islice(places, n)) for n in sheet.groups] or [[]]
    parts: list[list[int]] = []
    for group in groups:
        if parts and _fits(sheet.only({*names, *parts[-1], *group}), width):
            parts[-1] += group
        elif _fits(sheet.only({*names, *group}), width):
            parts.append(list(group))
        else:
            return []
    return [sheet.only({*names, *part}) for part in parts]


def _fits(sheet: Sheet, width: int) -> bool:
    return _taken(_least_widths(sheet)) <= width


def _fits_without_prose(sheet: Sheet, width: int) -> bool:
    return sheet.prose is not None and _fits(sheet.without(sheet.prose), width)


def _taken(widths: Sequence[int]) -> int:
    """Count what columns of these widths take of a line, margins on both sides included."""
    return sum(widths) + GAP * (len(widths) - 1) + 2 * MARGIN


def _least_widths(sheet: Sheet) -> list[int]:
    """Return each column's least width: cells stay whole, heads may be broken between words."""
    columns = zip(sheet.header, *sheet.text_rows(), strict=True)
    return [max(_longest(cells), _longest_word(head)) for head, *cells in columns]


def _longest(cells: Sequence[str]) -> int:
    return max((cell_len(line) for cell in cells for line in cell.split("\n")), default=0)


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _widths(sheet: Sheet, width: int) -> list[int]:
    """Share out the width that is left to the heads that would be broken most."""
    widths = _least_widths(sheet)
    heads = [_longest([head]) for head in sheet.header]
    while _taken(widths) < width:
        missing = [head - have for head, have in zip(heads, widths, strict=True)]
        if max(missing) <= 0:
            break
        widths[missing.index(max(missing))] += 1
    return widths


def _table(sheet: Sheet, width: int) -> Iterator[Text]:
    """Heads, a rule, and a line for each row; sentences below theirs if they fit nowhere else."""
    below: list[str] = []
    if sheet.prose is not None and not _fits(sheet, width):
        place = sheet.header.index(sheet.prose)
        below = [row[place] for row in sheet.text_rows()]
        sheet = sheet.without(sheet.prose)
    widths = _widths(sheet, width)
    right = [sheet.is_number(i) for i in range(len(sheet.header))]
    heads = [_broken(head, room) for head, room in zip(sheet.header, widths, strict=True)]
    tallest = max(map(len, heads))
    for number in range(tallest):
        # A head with fewer lines than another stands on the rule, not in the air.
        cells = [([""] * (tallest - len(head)) + head)[number] for head in heads]
        yield Text(_line(cells, widths, right), style="bold")
    yield Text(" " * MARGIN + "─" * (_taken(widths) - 2 * MARGIN))
    for row, sentence in zip(sheet.text_rows(), below or [""] * len(sheet.rows), strict=True):
        for lines in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
            yield Text(_line(lines, widths, right))
        for line in textwrap.wrap(sentence, width - INDENT, break_on_hyphens=False):
            yield Text(" " * INDENT + line, style="dim")


def _broken(head: str, width: int) -> list[str]:
    """A head over as many lines as its width makes necessary."""
    lines: list[str] = []
    for part in head.split("\n"):
        lines += textwrap.wrap(part, width, break_on_hyphens=False) if part else []
    return lines or [""]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, flush_right in zip(cells, widths, right, strict=True):
        blanks = " " * (width - cell_len(cell))
        padded.append(blanks + cell if flush_right else cell + blanks)
    return (" " * MARGIN + (" " * GAP).join(padded)).rstrip()


def _stacked(sheet: Sheet, width: int) -> Iterator[Text]:
    """The one row of a table, a cell in each line."""
    header = [one_line(column) for column in sheet.header]
    longest = max(map(cell_len, header))
    for column, cell in zip(header, sheet.text_rows()[0], strict=True):
        first = f" {column:<{longest}}  "
        rest = " " * len(first)
        yield from map(
            Text, textwrap.wrap(cell, width, initial_indent=first, subsequent_indent=rest)
        )
