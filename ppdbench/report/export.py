"""One table, five ways to write it: terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdbench.files import paths
from ppdbench.files.clean import clean
from ppdbench.files.whole import write_whole
from ppdbench.report.sheet import Sheet, joined, marked, one_line
from ppdbench.report.terminal import print_sheets


def to_csv(sheets: Sequence[Sheet]) -> str:
    """Comma-separated values in full precision, of one table: readers of CSV take no more."""
    out, sheet = io.StringIO(), joined(sheets).cleaned("csv")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(one_line, sheet.header))
    writer.writerows(["" if cell is None else cell for cell in row] for row in sheet.rows)
    return out.getvalue()


def to_markdown(sheets: Sequence[Sheet]) -> str:
    """GitHub tables."""
    blocks = []
    for sheet in (sheet.cleaned("markdown") for sheet in sheets):
        marks = ["---:" if sheet.is_number(i) else "---" for i in range(len(sheet.header))]
        rows = [list(sheet.header), marks, *sheet.text_rows()]
        body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        notes = "".join(f"\n\n{note}" for note in sheet.notes)
        lead = "".join(f"{line}\n\n" for line in sheet.lead)
        blocks.append(f"### {sheet.title}\n\n{lead}{body}{notes}\n")
    return "\n".join(blocks)


def to_latex(sheets: Sequence[Sheet]) -> str:
    """booktabs tables, their notes in paragraphs of their own below."""
    blocks = []
    for sheet in (sheet.cleaned("latex") for sheet in sheets):
        spec = "".join("r" if sheet.is_number(i) else "l" for i in range(len(sheet.header)))
        cells = [[_latex_number(cell) for cell in row] for row in sheet.text_rows()]
        head, *lines = [" & ".join(row) + r" \\" for row in [list(sheet.header), *cells]]
        caption = " ".join([f"{sheet.title}.", *sheet.lead]) if sheet.lead else sheet.title
        parts = [
            "\\begin{table}\n\\centering",
            f"\\caption{{{caption}}}",
            f"\\begin{{tabular}}{{{spec}}}\n\\toprule\n{head}\n\\midrule",
            *lines,
            "\\bottomrule\n\\end{tabular}",
            *(f"\n\\medskip\n{{\\footnotesize {note}\\par}}" for note in sheet.notes),
            "\\end{table}\n",
        ]
        blocks.append("\n".join(parts))
    return "\n".join(blocks)


def _latex_number(cell: str) -> str:
    """Shares have a sign that comes after cleaning; everything else has been cleaned."""
    return re.sub(r"(?<!\\)%", r"\%", cell)


def json_text(value: Any) -> str:
    """Strict JSON: a NaN here would be a bug, not a number."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return clean(text, "json") + "\n"


WRITERS = {"csv": to_csv, "markdown": to_markdown, "latex": to_latex}
FORM_OF = {".json": "json", ".csv": "csv", ".md": "markdown", ".tex": "latex"}


def emit(sheets: Sequence[Sheet], json_value: Any, form: str) -> None:
    """Write the result of a command to stdout in the form asked for."""
    if form == "table":
        print_sheets(sheets)
        return
    sys.stdout.write(_text(sheets, json_value, form))


def _text(sheets: Sequence[Sheet], json_value: Any, form: str) -> str:
    return json_text(json_value) if form == "json" else WRITERS[form](sheets)


def check_table_path(path: str | Path) -> Path:
    """Refuse a file that `write` could not write."""
    return paths.check_path(path, FORM_OF, "table")


def write(path: str | Path, sheets: Sequence[Sheet], json_value: Any) -> None:
    """Write the result of a command to a file, in the form that its suffix names."""
    path = check_table_path(path)
    write_whole(path, _text(sheets, json_value, _form_of(path)))


def _form_of(path: Path) -> str:
    """The form that the suffix of a file names, in small letters or capitals."""
    return FORM_OF[path.suffix.lower()]


@dataclass(frozen=True, slots=True)
class PrintedOutput:
    """Tables that people read, one with every figure, and the content of JSON."""

    sheets: list[Sheet]
    long: Sheet
    content: Any

    def marked(self, words: str | None) -> PrintedOutput:
        """The same with these words under every table."""
        return replace(self, sheets=marked(self.sheets, words))

    def emit(self, form: str) -> None:
        """Write to stdout."""
        emit(self._sheets(form == "csv"), self.content, form)

    def write(self, path: str) -> None:
        """Write to a file, in the form that its suffix names."""
        form = _form_of(check_table_path(path))
        write(path, self._sheets(form == "csv"), self.content)

    def _sheets(self, csv: bool) -> list[Sheet]:
        """The tables to write: programs get one."""
        return [self.long] if csv else self.sheets
