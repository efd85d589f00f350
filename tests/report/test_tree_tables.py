"""Trees on the terminal and in pictures."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ppdbench.engine.loading import ModelSpec
from ppdbench.report.pictures import trees as pictures
from ppdbench.report.pictures.drawing import Line
from ppdbench.report.pictures.files import save_picture
from ppdbench.report.terminal import print_sheets
from ppdbench.report.tree_tables import (
    ShownTree,
    curve_json,
    curve_sheet,
    nodes_sheet,
    print_shown,
    show,
    shown_json,
)
from ppdbench.trees.build import BuildConfig, Built, build_tree
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import DynamicTree, TreeState, search
from ppdbench.trees.expected import expected, in_states
from ppdbench.trees.static import grow
from ppdbench.trees.tree import Tree
from tests.report.pictures.seen import boxes, marks, texts
from tests.trees.made import accuracies, drawn, outputs
from tests.trees.test_latency import curve as times

KNOWN = accuracies((0.5, 0.15), (0.4, 0.1), method="prompt-tokens")
STATIC = Tree(((0,), (1,), (0, 0)))
DYNAMIC = DynamicTree(
    (TreeState(Tree(((0,), (1,))), (2, 2, 1)), TreeState(Tree(((0,), (0, 0))), (2, 2, 1)))
)


def drawing(shown: ShownTree, width: int = 80) -> list[str]:
    out = io.StringIO()
    print_shown(shown, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def built(tmp_path: Path, *, timed: bool = True, **options: Any) -> Built:
    drawn(0).save(tmp_path / "calibration.json")
    latency = tmp_path / "latency.json"
    if timed:
        times(2, 2.4, 2.2, 9, sizes=(1, 8, 16, 32)).save(latency)
        options["latency"] = latency
    spec = ModelSpec()
    return build_tree(
        BuildConfig(calibration=tmp_path / "calibration.json", model=spec, measuring={}, **options)
    )


# A tree


def test_a_static_tree_is_drawn_with_its_ranks() -> None:
    assert drawing(show(STATIC, None)) == [
        "static tree",
        "",
        "tree: 4 nodes",
        "newest token",
        "├── rank 0",
        "│   └── rank 0",
        "└── rank 1",
        "",
        "rank: of the guess, 0 the likeliest.",
    ]


def test_accuracies_put_a_chance_on_every_node() -> None:
    lines = drawing(show(STATIC, KNOWN))
    assert lines[0] == "static tree, prompt-tokens: 1.850 tokens a step expected"
    assert lines[3:7] == [
        "newest token  100.0%",
        "├── rank 0  50.0%",
        "│   └── rank 0  20.0%",
        "└── rank 1  15.0%",
    ]


def test_a_dynamic_tree_is_drawn_state_by_state() -> None:
    lines = drawing(show(DYNAMIC, KNOWN))
    assert lines[0] == "dynamic tree, prompt-tokens: 1.690 tokens a step expected"
    assert "state 1 of 2: 3 nodes, 5 prompt tokens, 19.0% of steps, 1.650 tokens/step" in lines
    assert "state 2 of 2: 3 nodes, 5 prompt tokens, 81.0% of steps, 1.700 tokens/step" in lines
    assert lines[8:11] == [
        "newest token  100.0%  +2",
        "└── rank 0  50.0%  +2",
        "    └── rank 0  20.0%  +1",
    ]
    assert " ".join(lines[-6:]).find("+: prompt tokens that follow.") > 0
    assert "calibrate again to have outputs decoded" in " ".join(lines[-3:])


@pytest.mark.parametrize("method", ["medusa", "prompt-tokens"])
def test_what_was_played_is_shown_with_its_interval_and_its_outputs(method: str) -> None:
    known = Accuracies.counted(method, outputs(0))
    for tree in (STATIC, DYNAMIC):
        found = show(tree, known)
        assert found.tokens == expected(tree, known)
        assert found.tokens.low is not None
        lines = drawing(found)
        assert f"{found.tokens.value:.3f} [{found.tokens.low:.3f}, " in lines[0]
        assert "6 greedy outputs (240 tokens: task 0, task 1)" in " ".join(lines)
        assert max(map(len, lines)) <= 80
        value = shown_json(found)
        assert value["tokens_low"] < value["tokens_per_step"] < value["tokens_high"]
        assert value["views"][-1]["nodes"][1]["accepted"] == in_states(tree, known)[-1].reached[1]


def test_a_state_that_no_output_came_by_has_its_accuracies() -> None:
    known = Accuracies.counted("prompt-tokens", outputs(0))
    tree = DynamicTree(tuple(TreeState(s.tree, (2,) * len(s.prompts)) for s in DYNAMIC.states))
    first = show(tree, known).views[0]
    assert first.share == 0
    assert first.reached is not None
    assert first.reached[1] == known.p(0, 0)


def test_piped_drawings_are_plain_text() -> None:
    assert "\x1b" not in "".join(drawing(show(DYNAMIC, KNOWN)))


@pytest.mark.parametrize("width", [20, 34, 80])
def test_drawings_keep_to_the_width_of_the_terminal(width: int) -> None:
    known = drawn(1)
    lines = drawing(show(search(known, 60), known), width)
    assert max(map(len, lines)) <= width
    assert sum("rank" in line for line in lines) > 20  # nothing is left out


def test_every_node_has_a_row_in_files() -> None:
    sheet = nodes_sheet(show(DYNAMIC, KNOWN))
    assert sheet.header == ("state", "node", "depth", "prompts", "accepted", "last accepted")
    assert sheet.rows[5] == ("state 2 of 2", "0 0", 2, 1, pytest.approx(0.2), pytest.approx(0.2))
    assert nodes_sheet(show(STATIC, None)).rows == (
        ("newest token", 0),
        ("0", 1),
        ("1", 1),
        ("0 0", 2),
    )


def test_json_has_the_nodes_with_their_paths() -> None:
    value = shown_json(show(DYNAMIC, KNOWN))
    assert value["tokens_per_step"] == pytest.approx(1.690476, abs=1e-6)
    second = value["views"][1]
    assert second["share"] == pytest.approx(0.85 / 1.05)
    assert second["nodes"][2]["path"] == [0, 0]
    assert second["nodes"][2]["prompts"] == 1
    assert shown_json(show(STATIC, None))["views"][0]["nodes"][0] == {"path": []}


# The curve


def test_the_curve_has_a_row_per_size_and_marks_the_chosen_one(tmp_path: Path) -> None:
    found = built(tmp_path)
    sheet = curve_sheet(found)
    assert sheet.title == "Dynamic trees for prompt-tokens, tiny (float32, random weights)"
    assert sheet.header == (
        *("rows", "nodes", "tokens/step", "static", "random"),
        *("pass ms", "speedup", "chosen"),
    )
    marks = [(row[0], row[-1]) for row in sheet.rows]
    assert marks == [(8, ""), (16, "yes"), (32, "")]
    assert all(row[1] < row[0] for row in sheet.rows)  # type: ignore[operator]


def test_the_curve_of_outputs_has_its_interval(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    Accuracies.counted("prompt-tokens", outputs(0)).save(path)
    found = build_tree(BuildConfig(calibration=path, model=ModelSpec(), measuring={}, size=16))
    sheet = curve_sheet(found)
    assert sheet.header[:4] == ("rows", "nodes", "tokens/step", "±95%")
    assert any("240 tokens: task 0, task 1" in note for note in sheet.notes)
    out = io.StringIO()
    print_sheets([sheet], Console(file=out, width=80))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    point = curve_json(found)["chosen"]
    assert point["tokens_low"] < point["tokens_per_step"] < point["tokens_high"]
    assert curve_json(found)["calibration_outputs"] == 6


def test_without_times_there_is_no_speedup(tmp_path: Path) -> None:
    sheet = curve_sheet(built(tmp_path, timed=False, size=16))
    assert "speedup" not in sheet.header
    assert any("No pass was timed" in note for note in sheet.notes)


def test_json_of_the_curve_says_what_it_was_made_from(tmp_path: Path) -> None:
    found = built(tmp_path)
    value = curve_json(found)
    assert (value["kind"], value["calibration_n"]) == ("dynamic", 5000)
    assert value["chosen"] == value["points"][1]
    assert value["chosen"]["speedup"] == found.chosen.speedup
    assert value["latency"]["passes"][1]["rows"] == 8


# Pictures


def test_the_curve_is_drawn_in_three_panels_or_one(tmp_path: Path) -> None:
    titles = ["Tokens per step, expected", "Time of a pass, ms", "Speedup, predicted"]
    assert pictures.speedup_curve(built(tmp_path)).title == "; ".join(titles)
    alone = pictures.speedup_curve(built(tmp_path, timed=False, size=16))
    assert alone.title == titles[0]


def test_the_chosen_tree_is_marked(tmp_path: Path) -> None:
    found = built(tmp_path)
    drawing = pictures.speedup_curve(found)
    last = marks(drawing)[-1]
    words = f"16 rows: {found.chosen.speedup:.2f}x"
    assert last.hint == f"{words} at 16: {found.chosen.speedup:.3f}"
    assert words in texts(drawing)
    same = [mark for mark in marks(drawing) if (mark.x, mark.y) == (last.x, last.y)]
    assert len({mark.paint for mark in same}) == 2  # on its place in the curve, another colour


@pytest.mark.parametrize("known", [None, KNOWN])
def test_every_node_is_in_the_picture(known: Any) -> None:
    shown = show(DYNAMIC, known)
    assert len(shown.views) == 2
    for view, state in zip(shown.views, DYNAMIC.states, strict=True):
        picture = pictures.tree_picture(replace(shown, views=(view,)))
        assert len([box for box in boxes(picture) if box.hint]) == len(state.prompts)
        lines = [shape for shape in picture.shapes if isinstance(shape, Line)]
        assert len(lines) == len(state.tree)
    whole = [box for box in boxes(pictures.tree_picture(shown)) if box.hint]
    assert len(whole) == sum(len(state.prompts) for state in DYNAMIC.states)


def test_no_two_nodes_of_a_picture_stand_in_one_place() -> None:
    known = drawn(3)
    tree = grow(known, 50)
    places = pictures._places(tree)
    assert len(set(places.values())) == len(places) == 51
    for path in tree.paths:
        assert places[path][1] == len(path)
    by_depth: dict[int, list[float]] = {}
    for x, depth in places.values():
        by_depth.setdefault(depth, []).append(x)
    for row in by_depth.values():
        gaps = [b - a for a, b in zip(sorted(row), sorted(row)[1:], strict=False)]
        assert min(gaps, default=1) >= 1


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_have_the_same_bytes_each_time(tmp_path: Path, suffix: str) -> None:
    shown, found = show(DYNAMIC, KNOWN), built(tmp_path)
    for name in ("a", "b"):
        save_picture(pictures.tree_picture(shown), tmp_path / f"tree-{name}{suffix}")
        save_picture(pictures.speedup_curve(found), tmp_path / f"curve-{name}{suffix}")
    for what in ("tree", "curve"):
        first, second = (tmp_path / f"{what}-{name}{suffix}" for name in "ab")
        assert first.read_bytes() == second.read_bytes()
