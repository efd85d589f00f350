"""`ppdbench tree` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli import main
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import DynamicTree, load_tree
from ppdbench.trees.latency import Latency
from ppdbench.trees.static import expected_tokens, grow
from ppdbench.trees.tree import Tree
from tests.trees.made import drawn
from tests.trees.test_latency import MODEL
from tests.trees.test_latency import curve as times

PROMPTS = drawn(0)
MEDUSA = drawn(0, method="medusa")
TIMED = ["--model", MODEL, "--context", "8", "--rounds", "2", "--sizes", "4,8,12"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    PROMPTS.save("prompts.json")
    MEDUSA.save("medusa.json")
    Accuracies("medusa", ((30, 5), (20, 1)), 60).save("few.json")
    times(2, 2.4, 2.5, 9, sizes=(1, 8, 16, 32)).save("times.json")
    grow(MEDUSA, 12).save("static.json")
    Tree(((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))).save("deep.json")
    DynamicTree.uniform(Tree(((0,), (0, 0))), 3).save("dynamic.json")


def build(*arguments: object, calibration: str = "medusa.json", out: str = "t.json") -> int:
    words = ["tree", "build", "--calibration", calibration, "--out", out]
    return main.run([*words, *map(str, arguments)])


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object, **named: str) -> Any:
    assert build(*arguments, "--format", "json", **named) == 0
    return json.loads(capsys.readouterr().out)


# Building


def test_the_written_tree_is_the_one_that_is_shown_as_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = parsed(capsys, *TIMED)
    tree = Tree.load("t.json")
    assert value["kind"] == "static"
    assert value["chosen"]["nodes"] == 1 + len(tree)
    assert value["chosen"]["tokens_per_step"] == pytest.approx(expected_tokens(tree, MEDUSA))
    assert value["chosen"]["speedup"] == max(point["speedup"] for point in value["points"])
    assert [point["rows"] for point in value["points"]] == [4, 8, 12]
    assert value["latency"]["model"] == MODEL


def test_prompt_tokens_get_a_dynamic_tree(capsys: pytest.CaptureFixture[str]) -> None:
    value = parsed(capsys, "--latency", "times.json", calibration="prompts.json")
    assert value["kind"] == "dynamic"
    tree = load_tree("t.json")
    assert isinstance(tree, DynamicTree)
    assert tree.rows() == value["chosen"]["rows"] == 16


@pytest.mark.parametrize("kind", ["static", "random"])
def test_other_kinds_are_built_when_asked_for(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--method", kind, "--size", 24, "--latency", "times.json"]
    value = parsed(capsys, *arguments, calibration="prompts.json")
    assert value["chosen"]["rows"] == 24
    assert len(Tree.load("t.json")) == 5
    assert set(value["chosen"]["others"]) == {"dynamic", "static", "random"} - {kind}


@pytest.mark.usefixtures("narrow")
def test_the_table_shows_the_curve_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--latency", "times.json", calibration="prompts.json") == 0
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    for words in ("tokens/step", "speedup", "chosen", "yes", "random weights", "median of 9"):
        assert words in captured.out
    assert "written: t.json" in captured.err


@pytest.mark.parametrize("form", ["csv", "markdown", "latex"])
def test_every_format_has_the_curve(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--latency", "times.json", "--format", form) == 0
    assert "tokens/step" in capsys.readouterr().out


def test_times_are_measured_once_and_read_after_that(capsys: pytest.CaptureFixture[str]) -> None:
    first = parsed(capsys, *TIMED, "--latency", "new.json")
    assert Latency.load("new.json").model == MODEL
    again = parsed(capsys, "--latency", "new.json", "--sizes", "4,8,12")
    assert again["latency"] == first["latency"]
    assert again["points"] == first["points"]


def test_a_size_is_built_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    value = parsed(capsys, "--size", 9)
    assert value["latency"] is None
    assert Tree.load("t.json") == grow(MEDUSA, 8)


def test_a_size_that_no_tree_fills_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--size", 50, calibration="few.json") == 0
    assert "note: the largest tree of up to 50 rows has 7" in capsys.readouterr().err


def test_few_tokens_are_warned_of_with_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--size", 4, calibration="few.json") == 0
    err = capsys.readouterr().err
    assert "warning: calibrated on only 60 tokens" in err
    assert "from 37.7% to 62.3%" in err


def test_no_gain_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    times(1, 10, 11, 12).save("slow.json")
    assert build("--latency", "slow.json") == 0
    assert "no tree promises to beat greedy decoding here" in capsys.readouterr().err


def test_unsteady_times_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(Path("times.json").read_text())
    content["passes"][2]["high"] = 0.02
    Path("times.json").write_text(json.dumps(content))
    assert build("--latency", "times.json") == 0
    assert "a pass of 16 rows took 2.3 to 20.0 ms" in capsys.readouterr().err


def test_the_curve_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--latency", "times.json", "--plot", "curve.svg") == 0
    assert "picture: curve.svg" in capsys.readouterr().err
    assert Path("curve.svg").read_bytes().startswith(b"<?xml")


# Showing


def test_a_tree_is_shown_with_the_chances_of_its_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tree", "show", "static.json", "--calibration", "medusa.json"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("rank") == 12 + 1
    assert f"{100 * MEDUSA.p(0, 0):.1f}%" in out


def test_a_tree_is_shown_and_drawn_without_accuracies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tree", "show", "static.json", "--plot", "tree.png"]) == 0
    captured = capsys.readouterr()
    assert "%" not in captured.out
    assert "picture: tree.png" in captured.err
    assert Path("tree.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_built_can_be_shown_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--latency", "times.json", calibration="prompts.json") == 0
    capsys.readouterr()
    for form, words in (("json", '"share"'), ("csv", "state,node"), ("markdown", "| state 3 of 3")):
        arguments = ["show", "t.json", "--calibration", "prompts.json", "--format", form]
        assert main.run(["tree", *arguments]) == 0
        assert words in capsys.readouterr().out


def test_a_narrow_terminal_gets_narrow_drawings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert main.run(["tree", "show", "static.json", "--calibration", "medusa.json"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30


# Bad input

BROKEN = {
    "cycle.json": {"paths": [[0, 0], [0]]},
    "twice.json": {"paths": [[0], [1], [0]]},
    "orphan.json": {"paths": [[0], [1, 0]]},
}
BAD = {
    "build --calibration none.json --out t.json": "calibration file none.json does not exist",
    "build --calibration torn.json --out t.json": "is not JSON that can be used",
    "build --calibration static.json --out t.json": "is no calibration file",
    "build --out t.json": "Missing option '--calibration'",
    "build --calibration medusa.json": "Missing option '--out'",
    "build --calibration medusa.json --out t.txt": "t.txt: no tree format has this suffix",
    "build --calibration medusa.json --out folder": "folder: no tree format",
    "build --calibration medusa.json --out t.json --plot a.gif": "a.gif: no picture format",
    "build --calibration medusa.json --out t.json --method best": "unknown kind of tree 'best'",
    "build --calibration medusa.json --out t.json --method dynamic": "are for prompt-tokens",
    "build --calibration medusa.json --out t.json --depth 4": "reach 3 tokens ahead; use 1..3",
    "build --calibration medusa.json --out t.json --depth 0": "--depth 0",
    "build --calibration medusa.json --out t.json --size many": "--size many: use auto, or a",
    "build --calibration medusa.json --out t.json --size 0": "--size 0: use 1..4096 rows",
    "build --calibration medusa.json --out t.json --size -4": "--size -4: use auto, or a",
    "build --calibration medusa.json --out t.json --size 1": "no static tree has 1 rows",
    "build --calibration medusa.json --out t.json --sizes 4,x": "--sizes '4,x': use numbers",
    "build --calibration medusa.json --out t.json --sizes 0,4": "--sizes 0: use 1..4096 rows",
    "build --calibration medusa.json --out t.json --rows-per-guess -1": "--rows-per-guess -1.0",
    "build --calibration prompts.json --out t.json --method static --size 7": "use 8 or more",
    "build --calibration medusa.json --out t.json --latency times.json --sizes 40": "up to 32",
    "build --calibration medusa.json --out t.json --latency times.json --model reference": (
        "was measured with model tiny, not reference; drop --model or give --latency another file"
    ),
    "build --calibration medusa.json --out t.json --latency times.json --dtype bfloat16": (
        "was measured with dtype float32, not bfloat16"
    ),
    "build --calibration medusa.json --out t.json --latency static.json": "is no latency file",
    f"build --calibration medusa.json --out t.json --model {MODEL} --sizes 60 --context 8": (
        "8 tokens of context and a pass of 60 rows, but synthetic"
    ),
    "show none.json": "tree file none.json does not exist; `ppdbench tree build` makes one",
    "show torn.json": "tree file torn.json is not JSON",
    "show medusa.json": "medusa.json is no tree file",
    "show cycle.json": "cycle.json: node [0, 0] stands before its parent [0]; list parents first",
    "show twice.json": "twice.json: node [0] stands there twice",
    "show orphan.json": "orphan.json: node [1, 0] has no parent [1]",
    "show deep.json --calibration medusa.json": "4 deep, but accuracies reach 3 tokens ahead",
    "show dynamic.json --calibration medusa.json": (
        "dynamic.json is a dynamic tree, for prompt-tokens, and these are the accuracies of medusa"
    ),
    "show static.json --plot a.txt": "a.txt: no picture format",
    "grow": "No such command 'grow'",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("torn.json").write_text('{"format": ')
    Path("folder").mkdir()
    for name, content in BROKEN.items():
        whole = {"format": "ppdbench-tree", "version": 1, **content}
        Path(name).write_text(json.dumps(whole))
    assert main.run(["tree", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert BAD[arguments] in captured.err
    assert not Path("t.json").exists()


def test_showing_a_tree_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from ppdbench.cli.main import run; "
        "code = run(['tree', 'show', 'static.json', '--calibration', 'medusa.json']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
