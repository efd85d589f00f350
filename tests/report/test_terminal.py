"""Tables within a terminal's width: no cell broken, nothing missing without a word."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from ppdbench.report.export import emit
from ppdbench.report.outputs import of_run
from ppdbench.report.page.runs import read_runs
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import REMEDY, print_sheets
from tests.conftest import ROOT

NUMBERS = Sheet(
    "wide",
    ("name", *(f"column {i}" for i in range(9))),
    (("first", *[12345.5] * 9), ("second", *[2.5] * 9)),
    spare=("column 3",),
)


def shown(*sheets: Sheet, width: int = 80) -> list[str]:
    """The lines on a terminal of this width."""
    out = io.StringIO()
    print_sheets(sheets, Console(file=out, width=width))
    return out.getvalue().splitlines()


def rows_of(lines: Sequence[str]) -> list[str]:
    """The lines between the rule and the first empty one below."""
    rule = next(i for i, line in enumerate(lines) if "──" in line)
    end = next((i for i in range(rule, len(lines)) if not lines[i].strip()), len(lines))
    return list(lines[rule + 1 : end])


def test_what_fits_is_drawn_whole_and_needs_no_remark() -> None:
    lines = shown(NUMBERS, width=120)
    assert len(rows_of(lines)) == 2
    assert rows_of(lines)[0].count("12345.5") == 9
    assert not any(REMEDY in line for line in lines)


def test_a_narrow_terminal_loses_columns_and_is_told_which() -> None:
    lines = shown(NUMBERS, width=80)
    assert max(map(len, lines)) <= 80
    assert len(rows_of(lines)) == 2
    assert rows_of(lines)[0].split() == ["first", *["12345.5000"] * 6]
    text = " ".join(lines)
    assert "3 more columns (column 3, column 8, column 7)" in text
    assert REMEDY in text


def test_long_texts_are_cut_and_that_is_said() -> None:
    sheet = Sheet("t", ("name", "why", "n"), (("a", "word " * 40, 12345), ("b", "short", 1)))
    lines = shown(sheet)
    assert max(map(len, lines)) <= 80
    first, second = rows_of(lines)
    assert "…" in first and first.endswith("12345")
    assert "short" in second
    assert any("end in … are longer" in line for line in lines)


def test_sentences_stand_below_their_rows_where_there_is_no_room_beside() -> None:
    sheet = Sheet("t", ("name", "help"), (("a", "some words " * 12), ("b", "few")), prose="help")
    lines = shown(sheet)
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(rows_of(lines)).split()) == f"a {'some words ' * 12}b few"
    wide = shown(sheet, width=200)
    assert len(rows_of(wide)) == 2


def test_heads_break_between_words_and_cells_never() -> None:
    sheet = Sheet("t", ("name", "milliseconds per token"), (("a b c", 1.5), ("d e f", 2.5)))
    lines = shown(sheet, width=24)
    assert [line.split() for line in rows_of(lines)] == [
        ["a", "b", "c", "1.5000"],
        ["d", "e", "f", "2.5000"],
    ]
    assert "milliseconds" not in " ".join(line for line in lines if "token" in line)


def test_wide_characters_count_as_what_they_take() -> None:
    lines = rows_of(shown(Sheet("t", ("x", "n"), (("日本", 1), ("abcd", 2)))))
    assert lines == [" 日本  1", " abcd  2"]


def test_a_pipe_gets_every_column_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sheet = Sheet("t", ("name", "text"), (("n" * 100, "words " * 60),), notes=("note " * 60,))
    emit([NUMBERS, sheet], None, "table")
    lines = capsys.readouterr().out.splitlines()
    assert rows_of(lines)[0].count("12345.5") == 9
    assert any("n" * 100 in line and line.count("words") == 60 for line in lines)
    assert any(line.count("note") == 60 for line in lines)
    assert not any(REMEDY in line or "…" in line for line in lines)


def test_no_color_leaves_no_codes_at_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    emit([NUMBERS], None, "table")
    assert "\x1b" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    emit([NUMBERS], None, "table")
    assert "\x1b" not in capsys.readouterr().out


STORED = sorted(path.parent for path in (ROOT / "results").glob("**/run.json"))


@pytest.mark.parametrize("run", STORED, ids=[path.name for path in STORED])
def test_no_table_of_a_stored_run_breaks_a_cell_in_80_columns(run: object) -> None:
    (stored,) = read_runs([str(run)])
    for sheet in of_run(stored).sheets:
        lines = shown(sheet)
        assert max(map(len, lines)) <= 80, sheet.title
        rows = rows_of(lines) if any("──" in line for line in lines) else None
        if sheet.prose is None and rows is not None:
            assert len(rows) == len(sheet.rows), sheet.title


@pytest.mark.parametrize(("encoding", "rule"), [("utf-8", "─"), ("ascii", "-"), ("latin-1", "-")])
def test_rules_are_of_signs_that_the_output_can_hold(encoding: str, rule: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    sheet = Sheet("t", ("head", "more"), (("cell" * 20, 1), ("cell", 2)))
    print_sheets([sheet], Console(file=file, width=30))
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]
    assert lines[3].strip() == rule * 28
    assert all(len(line) <= 30 for line in lines)
