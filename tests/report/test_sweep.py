"""Sweeps as people see them: readable at 80 columns, without colour, losses included."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ppdbench.bench.sweep_summary import Swept
from ppdbench.report import sweep_tables
from ppdbench.report.pictures.files import save
from ppdbench.report.pictures.sweep import sweep_picture
from ppdbench.report.sweep_map import print_map
from tests.filled import add_up, swept
from tests.report.pictures.seen import boxes, texts
from tests.sweeps import Axes, cells, header, label, sample

GRID = {"exit_layer": (1, 2), "draft_length": (2, 4)}
SPEEDS = {
    label(exit_layer=1, draft_length=2): 0.8,
    label(exit_layer=1, draft_length=4): 1.0,
    label(exit_layer=2, draft_length=2): 1.3,
    label(exit_layer=2, draft_length=4): 1.8,
}


def found(axes: Axes = GRID, speeds: dict[str, float] | None = None, **changes: Any) -> Swept:
    samples = cells(SPEEDS if speeds is None else speeds)
    return swept(header(axes, 6, **changes), add_up(samples))


def drawn(result: Swept, width: int = 80, **options: Any) -> str:
    out = io.StringIO()
    print_map(result, Console(file=out, width=width, **options))
    return out.getvalue()


def test_the_map_reads_without_colour() -> None:
    text = drawn(found())
    rows = [line.split() for line in text.splitlines()]
    assert ["exit_layer", "2", "4"] in rows
    assert ["1", "▼0.80x", "≈same"] in rows
    assert ["2", "▲1.30x", "★1.80x"] in rows
    assert "▼ slower" in text
    assert "\x1b" not in text


def test_colour_only_adds_to_it() -> None:
    coloured = drawn(found(), force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert "▼0.80x" in coloured


@pytest.mark.parametrize("width", [30, 80])
def test_more_columns_than_fit_go_into_further_blocks(width: int) -> None:
    lengths = tuple(range(1, 25))
    speeds = {label(exit_layer=e, draft_length=d): 1.5 + d / 10 for e in (1, 2) for d in lengths}
    text = drawn(found({"exit_layer": (1, 2), "draft_length": lengths}, speeds), width)
    assert max(map(len, text.splitlines())) <= width
    heads = [line.split()[1:] for line in text.splitlines() if line.startswith("exit_layer   ")]
    assert len(heads) > 1
    assert [int(name) for head in heads for name in head] == list(lengths)


def test_of_three_options_the_best_over_the_third_is_shown_and_said() -> None:
    axes = {**GRID, "adaptive": (False, True)}
    speeds = {
        label(exit_layer=e, draft_length=d, adaptive=a): e + 0.1 * d + a
        for e in (1, 2)
        for d in (2, 4)
        for a in (False, True)
    }
    text = drawn(found(axes, speeds))
    assert "the best over adaptive" in text
    assert "▲2.20x ▲2.40x" in text
    assert "★3.40x" in text


def test_one_option_is_drawn_as_bars_that_end_at_the_speedup() -> None:
    speeds = {label(exit_layer=1): 0.5, label(exit_layer=2): 2.0}
    short, long = drawn(found({"exit_layer": (1, 2)}, speeds)).splitlines()[1:3]
    assert (short.count("█"), long.count("█")) == (10, 39)  # and greedy's mark on the way
    assert "│" in short
    assert short.endswith("▼0.50x")
    assert long.endswith("★2.00x")


def test_cells_without_a_speedup_say_why() -> None:
    first, second, third, _ = SPEEDS
    samples = [
        *cells({third: 1.3}),
        *(sample(first, n, 1.0, "mismatch") for n in range(6)),
        *(sample(second, n, 1.0, "failed") for n in range(6)),
    ]
    result = swept(header(GRID, 6, not_run={list(SPEEDS)[3]: "no weights"}), add_up(samples))
    text = drawn(result)
    assert "✗differs" in text
    assert "!failed" in text
    assert "!not run" in text
    outputs = {row[-3]: row[-2] for row in sweep_tables.cells(result).rows}
    assert outputs["6 MISMATCH"] == outputs["NOT RUN"] == outputs["6 FAILED"] == "-"


def test_slower_cells_are_called_slower_in_the_table() -> None:
    sheet = sweep_tables.cells(found())
    assert [row[:2] for row in sheet.rows] == [(2, 4), (2, 2), (1, 4), (1, 2)]
    assert [row[-2] for row in sheet.rows] == ["1.80x", "1.30x", "no difference", "0.80x slower"]


def test_the_number_of_examples_is_shown_where_it_differs() -> None:
    assert "examples" not in sweep_tables.cells(found()).header
    few = cells(dict.fromkeys(list(SPEEDS)[:2], 0.9), 6)
    many = cells(dict.fromkeys(list(SPEEDS)[2:], 1.2), 12)
    rungs = [{"cells": 4, "examples": 6}, {"cells": 2, "examples": 12}]
    result = swept(header(GRID, 12, rungs=rungs), add_up(few + many))
    sheet = sweep_tables.cells(result)
    at = sheet.header.index("examples")
    assert [row[at] for row in sheet.rows] == [12, 12, 6, 6]
    assert any("4 cells on 6, 2 cells on 12" in note for note in sheet.notes)
    assert "(0.90x)" in drawn(result)


def test_the_verdict_tells_best_and_second_apart_or_not() -> None:
    rows = [row[1:] for row in sweep_tables.verdict(found()).rows]
    assert rows[0][:2] == ("exit_layer=2, draft_length=4", "1.80x")
    assert rows[2][1] == "1.38x"
    close = {**SPEEDS, list(SPEEDS)[2]: 1.8}
    assert sweep_tables.verdict(found(speeds=close)).rows[2][2] == "no difference"


def test_a_sweep_of_losses_says_that_all_lose() -> None:
    slow = {name: 0.5 + i / 10 for i, name in enumerate(SPEEDS)}
    assert "every setting is slower" in sweep_tables.verdict(found(speeds=slow)).title
    even = dict.fromkeys(SPEEDS, 1.0)
    assert "none is faster" in sweep_tables.verdict(found(speeds=even)).title


def test_an_unfinished_sweep_says_so_in_its_notes() -> None:
    part = found(speeds=dict(list(SPEEDS.items())[:3]))
    assert any("Unfinished" in note for note in sweep_tables.cells(part).notes)


def test_the_command_of_the_best_setting_can_be_pasted() -> None:
    line = sweep_tables.typed(found())
    assert line is not None
    assert shlex.split(line) == [
        *("ppdbench", "decode", "--method", "layerskip"),
        *("--set", "exit_layer=2", "--set", "draft_length=4", "--model", "./my model"),
        *("--task", "gsm8k", "--data", "builtin"),
    ]


def test_numbers_of_json_and_csv_are_numbers() -> None:
    result = found()
    content = sweep_tables.to_json(result)
    assert content["best"] == list(SPEEDS)[3]
    assert content["distinguishable"] is True
    assert content["grid"] == {"exit_layer": [1, 2], "draft_length": [2, 4]}
    assert [cell["setting"]["exit_layer"] for cell in content["cells"]] == [2, 2, 1, 1]
    assert content["cells"][0]["speedup"] == pytest.approx(1.8)
    sheet = sweep_tables.long(result)
    row = dict(zip(sheet.header, sheet.rows[-1], strict=True))
    assert (row["exit_layer"], row["draft_length"], row["standing"]) == (1, 2, "slower")


def test_the_heat_map_has_a_cell_for_each_setting_and_says_which_is_best() -> None:
    shown = texts(sweep_picture(found()))
    assert [text for text in shown if text[0] in "▼≈▲★"][:4] == [
        *("▼0.80x", "≈same", "▲1.30x", "★1.80x"),
    ]
    words = " ".join(shown)
    for key in ("★ best", "▼ slower", "≈ same: no difference beyond noise"):
        assert key in words


def test_one_option_is_drawn_with_intervals_and_without_mismatches() -> None:
    axes, (one, two) = {"exit_layer": (1, 2)}, (label(exit_layer=1), label(exit_layer=2))
    wrong = [sample(two, n, 3.0, "mismatch") for n in range(6)]
    picture = sweep_picture(swept(header(axes, 6), add_up(cells({one: 1.5}) + wrong)))
    shown = texts(picture)
    assert "1.50× [1.49, 1.51]" in shown
    assert "6 mismatches: no speedup" in shown
    assert [box.hint for box in boxes(picture, "accent")] == ["exit_layer=1: 1.50× [1.49, 1.51]"]
    assert not boxes(picture, "loss")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_the_same_bytes_each_time(tmp_path: Path, suffix: str) -> None:
    for name in "ab":
        save(sweep_picture(found()), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
