"""A table before it is written: what its cells are, and how they read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ppdbench.files.clean import OutputKind, clean

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled table; `lead` stands above it, `notes` below. Numbers stay numbers until written.

    `digits` says how many decimals the floats of a column get (4 where it says nothing);
    columns in `percent` are fractions that people read as per cent. `groups` are numbers of
    neighbouring columns that belong together, the first of them those that name a row: what is
    too wide is drawn in parts, each with the names. `spare` are the columns that a narrow
    terminal does without, the first of them first; `prose` is a column of sentences, which stand
    below their rows where there is no room beside them.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    digits: Mapping[str, int] | None = None
    percent: frozenset[str] = frozenset()
    lead: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    spare: tuple[str, ...] = ()
    prose: str | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.header)} heads")
        unknown = {*self.spare, *filter(None, [self.prose])}.difference(self.header)
        if unknown:
            raise ValueError(f"{self.title}: no column {', '.join(sorted(unknown))}")

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Cell]], **how: Any) -> Sheet:
        """A table of rows that each name the same columns."""
        return cls(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), **how)

    def cleaned(self, kind: OutputKind) -> Sheet:
        """The same table, with texts that may be written to a place of this kind."""

        def safe(text: str) -> str:
            return clean(text, kind)

        def cell(value: Cell) -> Cell:
            return value if value is None or isinstance(value, int | float) else safe(str(value))

        return replace(
            self,
            title=safe(self.title),
            header=tuple(map(safe, self.header)),
            rows=tuple(tuple(map(cell, row)) for row in self.rows),
            notes=tuple(map(safe, self.notes)),
            digits={safe(name): places for name, places in (self.digits or {}).items()},
            percent=frozenset(map(safe, self.percent)),
            lead=tuple(map(safe, self.lead)),
            spare=tuple(map(safe, self.spare)),
            prose=None if self.prose is None else safe(self.prose),
        )

    def text(self, column: str, value: Cell) -> str:
        """Write a cell as it reads."""
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
        """True if a column holds numbers, which are set flush right."""
        cells = [row[index] for row in self.rows if row[index] is not None]
        return bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)

    def only(self, columns: Collection[int]) -> Sheet:
        """The same table with some of its columns, in their order."""
        header = tuple(name for i, name in enumerate(self.header) if i in columns)
        return replace(
            self,
            header=header,
            rows=tuple(
                tuple(cell for i, cell in enumerate(row) if i in columns) for row in self.rows
            ),
            groups=(),
            spare=tuple(name for name in self.spare if name in header),
            prose=self.prose if self.prose in header else None,
        )

    def without(self, column: str) -> Sheet:
        """The same table less one column."""
        return self.only([i for i, name in enumerate(self.header) if name != column])


def one_line(head: str) -> str:
    """The head of a column that stands over two lines, in one."""
    return head.replace("-\n", "-").replace("\n", " ")


def marked(sheets: Sequence[Sheet], words: str | None) -> list[Sheet]:
    """The same tables, each with these words below it, if there are any."""
    return [replace(s, notes=(*s.notes, words)) if words else s for s in sheets]


def joined(sheets: Sequence[Sheet]) -> Sheet:
    """Join tables into one, with the columns of all: the first column says which a row is of."""
    if len(sheets) == 1:
        return sheets[0]
    columns = tuple(dict.fromkeys(name for sheet in sheets for name in sheet.header))
    rows: list[tuple[Cell, ...]] = []
    for sheet in sheets:
        for row in sheet.rows:
            cells = dict(zip(sheet.header, row, strict=True))
            rows.append((sheet.title, *(cells.get(name) for name in columns)))
    return Sheet("", ("table", *columns), tuple(rows))
