"""`ppdbench sweep` as it is typed: what it prints, stores and shows again."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.runs import running
from ppdbench.runs.store import read_whole
from tests.cli.swept import LOOKUP, SMALL, parsed, swept
from tests.report.made import GRID, SPEEDS
from tests.sweeps import cells, header, sample, write


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_printed_command_runs_and_has_the_options_of_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--method", "prompt-lookup", "--grid", "max_draft=2,4", "--set", "longest_suffix=2"]
    swept(*words, "--limit", "5")
    printed = capsys.readouterr().out.splitlines()
    words = printed[-1].split()
    assert words[:2] == ["ppdbench", "decode"]
    assert run([*words[1:], "--format", "json"]) == 0
    decoded = json.loads(capsys.readouterr().out)
    assert decoded["options"]["longest_suffix"] == 2
    assert decoded["options"]["max_draft"] in (2, 4)
    assert (decoded["n_examples"], decoded["n_tokens"]) == (5, 30)


def test_a_mismatch_has_no_speedup_and_exits_1_again_when_shown(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--method", "odd", "--grid", "how=works,lies", "--limit", "5"]
    found = parsed(capsys, *grid, code=1)
    lying = next(c for c in found["cells"] if c["label"] == "odd:how=lies")
    assert (lying["standing"], lying["speedup"]) == ("mismatch", None)
    assert found["best"] == "odd:how=works"
    assert run(["sweep", "--show", "run"]) == 1
    captured = capsys.readouterr()
    assert "✗differs" in captured.out
    assert "5 outputs differ from greedy" in captured.err


def test_a_sweep_of_which_nothing_can_run_is_an_error(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for how, why in (("absent", "odd: no weights at hand"), ("unready", "unit 1 is out of memory")):
        swept("--method", "odd", "--grid", f"how={how}", code=2)
        assert capsys.readouterr().err == f"ppdbench: no cell can run: {why}\n"
        assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--method", "layerskip", "--grid", "exit_layer=1,9"],
            "this model has 3 layers; use 1..2",
        ),
        (["--method", "early-exit", "--grid", "exit_layer=1,3"], "this model has 3 layers"),
        (["--method", "ppd", "--grid", "exit_after=2,3"], "this model has 3 layers"),
        (["--method", "layerskip", "--grid", "draft_length=0,2"], "draft_length=0; use 1 or more"),
        (["--method", "layerskip"], "--grid KEY=VALUE"),
        (["--grid", "exit_layer=1,2"], "give --method and --grid, or --show"),
        (["--method", "layrskip", "--grid", "a=1"], "did you mean layerskip"),
        ([*LOOKUP, "--plot", "map.jpg"], "no picture format"),
        ([*LOOKUP, "--search", "halving", "--limit", "1"], "use --search grid"),
        ([*LOOKUP, "--search", "luck"], "'luck' is not one of 'grid', 'halving'"),
        (["--show", "nowhere"], "nowhere is no run folder"),
    ],
)
def test_bad_input_is_one_line_before_weights_load(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(running, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    words = arguments if "--show" in arguments else [*SMALL, *arguments]
    assert run(["sweep", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not Path("results").exists()


def test_a_stored_sweep_is_shown_without_torch(stored: str) -> None:
    program = (
        "import sys; from ppdbench.cli.main import run; "
        f"code = run(['sweep', '--show', '{stored}', '--plot', 'map.svg', '--format', 'json']); "
        "sys.exit(code or bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"] == list(SPEEDS)[3]
    assert Path("map.svg").read_text("utf-8").startswith("<?xml")


@pytest.mark.usefixtures("narrow")
def test_every_form_names_the_cells_and_their_standing(
    stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--show", stored]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines()[:-1])) <= 80
    assert "\x1b" not in table
    assert table.splitlines()[-1].startswith(
        "ppdbench decode --method layerskip --set exit_layer=2"
    )
    assert run(["sweep", "--show", stored, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["standing"] for row in rows] == ["faster", "faster", "no difference", "slower"]
    for form, mark in (("markdown", "| 0.80x slower |"), ("latex", "0.80x slower &")):
        assert run(["sweep", "--show", stored, "--format", form]) == 0
        assert mark in capsys.readouterr().out


def test_results_are_exported(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    exports = [word for end in ("json", "csv", "md") for word in ("--export", f"out/map.{end}")]
    assert run(["sweep", "--show", stored, *exports]) == 0
    assert json.loads(Path("out/map.json").read_text())["distinguishable"] is True
    assert Path("out/map.csv").read_text().count("\n") == 5
    assert "Best setting" in Path("out/map.md").read_text()


def test_failures_of_a_stored_sweep_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = SPEEDS
    broken = [sample(first, n, 1.0, "failed") for n in range(4)]
    write(Path("stored"), header(GRID, 4), broken + cells(dict.fromkeys(others, 1.2)))
    assert run(["sweep", "--show", "stored"]) == 3
    assert "4 examples failed; the first: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "layerskip"], "--show reads a stored sweep; leave --method out"),
        (["--limit", "2"], "leave --limit out"),
    ],
)
def test_show_takes_no_options_of_a_run(
    stored: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--show", stored, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_other_runs_are_no_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("bench"), header(GRID, 4, kind="bench"), cells(SPEEDS))
    assert run(["sweep", "--show", "bench"]) == 2
    assert "a run of `ppdbench bench` is no sweep" in capsys.readouterr().err


def test_a_grid_over_temperatures_draws_each_cell_at_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = ["--grid", "temperature=0.0001,9", "--grid", "exit_layer=1,2", "--limit", "1"]
    found = parsed(capsys, "--method", "layerskip", *grid, "--target", "top-p")
    settings = [cell["setting"] for cell in found["cells"]]
    assert sorted((s["temperature"], s["exit_layer"]) for s in settings) == [
        *((0.0001, 1), (0.0001, 2), (9, 1), (9, 2)),
    ]
    assert run(["decode", *SMALL, "--limit", "1", "--method", "greedy", "--out", "greedy"]) == 0
    (greedy,) = read_whole("greedy").samples
    for sample_ in read_whole("run").samples:
        # So cold a draw is the likeliest token; so hot, any.
        is_cold = "temperature=0.0001" in sample_.method
        assert (sample_.output_ids == greedy.output_ids) == is_cold
    assert run(["sweep", *SMALL, *grid, "--method", "layerskip"]) == 2
    assert "--grid temperature is about drawn outputs" in capsys.readouterr().err
