"""Rows of a paper with ours beside them: printed, measured and the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, pair

Values = Mapping[str, Cell]

NOTHING = "-"
PAIRS = "Cells: ours (the paper's). Differences are in --format csv and json."


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that is printed and measured: `key` in both, and how it reads."""

    key: str
    name: str
    digits: int = 3

    @property
    def columns(self) -> tuple[str, ...]:
        """Printed, measured, and the second less the first."""
        return f"{self.name} paper", self.name, f"{self.name} diff"

    def cells(self, row: ComparedRow) -> tuple[Cell, ...]:
        """The cells under these columns; None where nothing was printed or measured."""
        printed, measured = row.theirs.get(self.key), row.ours.get(self.key)
        if isinstance(printed, int | float) and isinstance(measured, int | float):
            return printed, measured, measured - printed
        return printed, measured, None

    def pair(self, row: ComparedRow) -> str | None:
        """Write both into one cell."""
        printed, measured, _ = self.cells(row)
        if printed is None and measured is None:
            return None
        return pair(self._text(measured), self._text(printed))

    def _text(self, value: Cell) -> str:
        if value is None:
            return NOTHING
        return f"{value:.{self.digits}f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row: its name, what the paper printed in it, and what was measured for it."""

    names: tuple[Cell, ...]
    theirs: Values
    ours: Values


def compared(
    title: str,
    names: tuple[str, ...],
    quantities: Sequence[Quantity],
    rows: Sequence[ComparedRow],
    notes: Sequence[str] = (),
) -> TableSheets:
    """The table of these rows, for programs and for people."""
    data = Sheet(
        title,
        (*names, *(column for q in quantities for column in q.columns)),
        tuple((*row.names, *(cell for q in quantities for cell in q.cells(row))) for row in rows),
        notes=tuple(notes),
        digits={column: q.digits for q in quantities for column in q.columns},
    )
    shown = Sheet(
        title,
        (*names, *(q.name for q in quantities)),
        tuple((*row.names, *(q.pair(row) for q in quantities)) for row in rows),
        notes=(PAIRS, *notes),
        groups=(len(names), *(1 for _ in quantities)),
    )
    return TableSheets(data, (shown,))


def blanks(
    rows: Sequence[ComparedRow], why: str, runs: Sequence[StoredRun] = ()
) -> tuple[str, ...]:
    """A note on the rows that nothing was measured for in `runs`, if there are any."""
    n = sum(all(value is None for value in row.ours.values()) for row in rows)
    if any(run.header.not_run for run in runs):
        why += ", or could not run"
    return (f"{n} of {len(rows)} rows have nothing of ours: {why}.",) if n else ()
