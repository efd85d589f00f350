"""Tables in every form they can be written."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ppdbench.report import FORMATS
from ppdbench.report.export import (
    PrintedOutput,
    emit,
    json_text,
    to_csv,
    to_latex,
    to_markdown,
)
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

SHEET = Sheet(
    title="Rates_1",
    header=("task", "k", "match_rate", "ms"),
    rows=(("squad|x", 1, 0.5, 1.23456), ("50% & $3_{a}", 10, None, 12.0)),
    notes=("95% of #1",),
    digits={"ms": 1},
    percent=frozenset({"match_rate"}),
)


def drawn(*sheets: Sheet, width: int = 80) -> str:
    out = io.StringIO()
    print_sheets(sheets, Console(file=out, width=width))
    return out.getvalue()


def test_rows_must_fit_their_header() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 heads"):
        Sheet("t", ("a", "b"), ((1,),))


def test_cells_read_as_their_column_says() -> None:
    assert SHEET.text_rows() == [
        ["squad|x", "1", "50.00%", "1.2"],
        ["50% & $3_{a}", "10", "-", "12.0"],
    ]
    assert Sheet("t", ("x",), ((0.123456,),)).text_rows() == [["0.1235"]]


def test_only_columns_of_numbers_are_numbers() -> None:
    assert [SHEET.is_number(i) for i in range(4)] == [False, True, True, True]
    assert not Sheet("t", ("x",), ((None,),)).is_number(0)


def test_terminal_sets_numbers_flush_right_and_text_flush_left() -> None:
    lines = drawn(SHEET).splitlines()
    first = next(line for line in lines if "squad" in line)
    second = next(line for line in lines if "50% &" in line)
    assert first.index("squad") == second.index("50% &")
    assert first.index("1  ") == second.index("10  ") + 1
    assert first.index("1.2") == second.index("12.0") + 1
    assert lines[0].strip() == "Rates_1"
    assert "95% of #1" in lines


def test_terminal_output_keeps_to_its_width() -> None:
    wide = Sheet("t", ("name", "meaning", "n"), (("word " * 20, "long " * 30, 12345),))
    assert max(map(len, drawn(wide).splitlines())) <= 80
    assert "12345" in drawn(wide)


def test_csv_keeps_full_precision_and_leaves_missing_cells_empty() -> None:
    rows = list(csv.reader(io.StringIO(to_csv([SHEET]))))
    assert rows == [
        ["task", "k", "match_rate", "ms"],
        ["squad|x", "1", "0.5", "1.23456"],
        ["50% & $3_{a}", "10", "", "12.0"],
    ]


def test_csv_quotes_what_would_break_a_row() -> None:
    sheet = Sheet("t", ("x",), (('a,"b"\nc',),))
    assert list(csv.reader(io.StringIO(to_csv([sheet])))) == [["x"], ['a,"b"\nc']]


def test_several_tables_are_one_in_csv_with_the_columns_of_all() -> None:
    one = Sheet("first", ("x", "y"), ((1, 2.5), (2, None)))
    other = Sheet("=second", ("y", "z"), ((3.0, "c"),))
    assert list(csv.reader(io.StringIO(to_csv([one, other])))) == [
        ["table", "x", "y", "z"],
        ["first", "1", "2.5", ""],
        ["first", "2", "", ""],
        ["'=second", "", "3.0", "c"],
    ]


def test_markdown_aligns_numbers_and_escapes_bars() -> None:
    assert to_markdown([SHEET]).splitlines() == [
        "### Rates_1",
        "",
        "| task | k | match_rate | ms |",
        "| --- | ---: | ---: | ---: |",
        "| squad\\|x | 1 | 50.00% | 1.2 |",
        "| 50% & $3_{a} | 10 | - | 12.0 |",
        "",
        "95% of #1",
    ]


def test_latex_aligns_numbers_and_escapes_specials() -> None:
    text = to_latex([SHEET])
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\caption{Rates\_1}" in text
    assert r"50\% \& \$3\_\{a\} & 10 & - & 12.0 \\" in text
    assert "\\end{tabular}\n\n\\medskip\n{\\footnotesize 95\\% of \\#1\\par}\n" in text
    assert text.count(r"\begin") == text.count(r"\end") == 2


def test_latex_escapes_backslash_tilde_and_caret() -> None:
    text = to_latex([Sheet("t", ("x",), ((r"\~^",),))])
    assert r"\textbackslash{}\textasciitilde{}\textasciicircum{}" in text


def test_json_refuses_what_is_no_number() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            json_text({"x": value})


def test_json_keeps_text_readable() -> None:
    assert json_text({"x": "é"}) == '{\n  "x": "é"\n}\n'


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_written_to_stdout(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    emit([SHEET], {"rows": [1]}, form)
    out = capsys.readouterr().out
    if form == "json":
        assert json.loads(out) == {"rows": [1]}
    else:
        assert "squad" in out
    if form == "table":
        assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("suffix", [".csv", ".json", ".md", ".tex"])
def test_a_suffix_in_capitals_names_the_same_form(suffix: str, tmp_path: Path) -> None:
    every_figure = Sheet("long", ("task", "rate"), (("squad", 0.123456789),))
    output = PrintedOutput([SHEET, SHEET], every_figure, {"rows": [1]})
    small, capitals = tmp_path / f"small{suffix}", tmp_path / f"CAPITALS{suffix.upper()}"
    for path in (small, capitals):
        output.write(str(path))
    assert capitals.read_bytes() == small.read_bytes()


@pytest.mark.parametrize("form", ["csv", "markdown", "latex"])
def test_long_rows_are_not_wrapped_on_their_way_to_a_file(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emit([Sheet("t", ("x", "y"), (("a" * 100, "b " * 50 + "b" * 100),))], None, form)
    out = capsys.readouterr().out
    assert any("a" * 100 in line and "b " * 50 + "b" * 100 in line for line in out.splitlines())


def test_a_table_too_wide_for_the_terminal_is_written_cell_by_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sheet = Sheet("wide", ("name", *(f"column\n{i}" for i in range(9))), (("x", *range(9)),))
    print_sheets([sheet], Console(width=40))
    out = capsys.readouterr().out
    assert "column 8  8" in out
    assert max(map(len, out.splitlines())) <= 40


def test_a_heading_of_two_lines_counts_as_its_longer_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sheet = Sheet("narrow", tuple(f"column\n{i}" for i in range(4)), ((1, 2, 3, 4),))
    print_sheets([sheet], Console(width=40))
    assert "column  column  column  column" in capsys.readouterr().out
