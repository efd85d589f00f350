"""Tables of sweeps: losses included, and a command that can be pasted."""

from __future__ import annotations

import shlex

import pytest

from ppdbench.report import sweep_tables
from tests.filled import add_up, swept
from tests.report.made import GRID, SPEEDS, drawn, found
from tests.sweeps import cells, header, label


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
    rows = [row[1:] for row in sweep_tables.best_setting(found()).rows]
    assert rows[0][:2] == ("exit_layer=2, draft_length=4", "1.80x")
    assert rows[2][1] == "1.38x"
    close = {**SPEEDS, list(SPEEDS)[2]: 1.8}
    assert sweep_tables.best_setting(found(speeds=close)).rows[2][2] == "no difference"


def test_a_sweep_of_losses_says_that_all_lose() -> None:
    slow = {name: 0.5 + i / 10 for i, name in enumerate(SPEEDS)}
    assert "every setting is slower" in sweep_tables.best_setting(found(speeds=slow)).title
    even = dict.fromkeys(SPEEDS, 1.0)
    assert "none is faster" in sweep_tables.best_setting(found(speeds=even)).title


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
    content = sweep_tables.sweep_json(result)
    assert content["best"] == list(SPEEDS)[3]
    assert content["distinguishable"] is True
    assert content["grid"] == {"exit_layer": [1, 2], "draft_length": [2, 4]}
    assert [cell["setting"]["exit_layer"] for cell in content["cells"]] == [2, 2, 1, 1]
    assert content["cells"][0]["speedup"] == pytest.approx(1.8)
    sheet = sweep_tables.long(result)
    row = dict(zip(sheet.header, sheet.rows[-1], strict=True))
    assert (row["exit_layer"], row["draft_length"], row["standing"]) == (1, 2, "slower")


def test_an_option_that_is_a_figure_too_has_one_column() -> None:
    alone = label(draft_length=2)
    sizes = {alone: 1, f"{alone} (batch 4)": 4}
    about = {"name": "layerskip", "exact": True, "options": {"draft_length": 2}, "loaded": {}}
    methods = {name: {**about, "batch": size} for name, size in sizes.items()}
    batches = found({"draft_length": (2,)}, dict.fromkeys(sizes, 1.5), methods=methods)
    sheet = sweep_tables.long(batches)
    assert sheet.header[:3] == ("draft_length", "batch", "standing")
    assert len(set(sheet.header)) == len(sheet.header)
    assert [row[1] for row in sheet.rows] == [1, 4]


def test_an_option_that_is_called_as_another_figure_is_told_apart_from_it() -> None:
    speeds = {label(target="far"): 1.8, label(target="near"): 1.3}
    sheet = sweep_tables.long(found({"target": ("far", "near")}, speeds))
    assert len(set(sheet.header)) == len(sheet.header)
    at = sheet.header.index("setting_target"), sheet.header.index("target")
    assert [tuple(row[i] for i in at) for row in sheet.rows] == [
        ("far", "greedy"),
        ("near", "greedy"),
    ]
