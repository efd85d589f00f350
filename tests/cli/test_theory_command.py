"""`ppdbench theory` as it is typed."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from ppdbench.cli.main import run
from ppdbench.files.resources import folder
from tests.report import probe_sample, write_run

SETTING = "--layers 40 --exit-after 20 --k 3 --p 0.6837"
NUMBERS = [*SETTING.split(), "--tokens", "128"]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def probe_run(tmp_path: Path) -> str:
    samples = [probe_sample("a"), probe_sample("b"), probe_sample("b", task="cnn_dailymail")]
    return str(write_run(tmp_path / "run", samples))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["theory", *arguments]) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--format", "json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["theory", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_json_has_the_fixed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(capsys, *NUMBERS) == pytest.approx(
        {
            "latency_per_token": 0.65815,
            "compute_per_time_unit": 3.279116,
            "compute_per_token": 2.15815,
            "expected_latency": 40 * 128 - 20 * 127 * 0.6837,
            "expected_compute": 40 * 128 - 20 * 127 * 0.6837 + 3 * 20 * 128,
            "speedup": 40 * 128 / (40 * 128 - 20 * 127 * 0.6837),
        },
        rel=1e-6,
    )


def test_tokens_default_to_128(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(capsys, *SETTING.split()) == parsed(capsys, *NUMBERS)


@pytest.mark.usefixtures("narrow")
def test_table_explains_each_value_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, *NUMBERS, "--simulate", "20")
    assert max(map(len, out.splitlines())) <= 80
    for words in ("latency per token", "0.6582", "(equation 5)", "Thm 4.1", "simulated compute"):
        assert words in out


def test_simulation_agrees_with_the_theorem(capsys: pytest.CaptureFixture[str]) -> None:
    value = parsed(capsys, *NUMBERS, "--simulate", "200", "--seed", "3")
    simulation = value["simulation"]
    assert (simulation["runs"], simulation["seed"]) == (200, 3)
    for what in ("latency", "compute"):
        error = abs(simulation[what] - value[f"expected_{what}"])
        assert error < 4 * simulation[f"{what}_error"]


def test_simulation_is_repeated_by_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    once, again, other = (
        parsed(capsys, *NUMBERS, "--simulate", "5", "--seed", seed) for seed in "112"
    )
    assert once == again != other


def _of_task(rows: list[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    ours = [row for row in rows if row["task"] == task]
    return sorted(ours, key=lambda row: (row["trained"], row["k"]))


def test_figures_are_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    figures = parsed(capsys, "--figures")["figures"]
    text = (folder("papers") / "ppd_figures.yaml").read_text(encoding="utf-8")
    # The paper's rows have the k before the head.
    rows = yaml.safe_load(text)["derived_rows"]
    rows = [r for task in ("squad", "wmt", "cnn_dm") for r in _of_task(rows, task)]
    assert len(figures) == len(rows) == 18
    for ours, theirs in zip(figures, rows, strict=True):
        assert ours["source"] == "paper"
        assert (ours["k"], ours["match_rate"]) == (theirs["k"], theirs["match_rate"])
        assert round(ours["latency_per_token"], 6) == theirs["normalized_latency_per_token"]
        assert round(ours["compute_per_time_unit"], 6) == theirs["avg_compute_per_time_unit"]
        assert round(ours["compute_per_token"], 6) == theirs["avg_compute_per_token_normalized"]


def test_run_gives_a_row_for_each_setting(
    capsys: pytest.CaptureFixture[str], probe_run: str
) -> None:
    value = parsed(capsys, "--run", probe_run)
    assert value["run"] == probe_run
    assert len(value["rows"]) == 2 * 3 * 2  # tasks, layers before the last, ks
    row = value["rows"][2]
    assert (row["task"], row["layer"], row["k"]) == ("squad", 2, 1)
    assert row["recorded_latency"] == 10
    assert row["expected_latency"] == pytest.approx(14 - 25 / 7)
    assert value["rows"][0]["latency_per_token"] is None  # layer 1 of 4


@pytest.mark.usefixtures("narrow")
def test_run_table_fits_80_columns_and_says_why_layers_have_no_latency(
    capsys: pytest.CaptureFixture[str], probe_run: str
) -> None:
    out = printed(capsys, "--run", probe_run, "--figures")
    assert max(map(len, out.splitlines())) <= 80
    assert "less than half of 4 layers" in out
    assert re.search(r"1 +N +1 +14\.29% +- +-", out)
    assert "measured: layer 2 of 4, greedy" in out


def test_choices_narrow_the_rows(capsys: pytest.CaptureFixture[str], probe_run: str) -> None:
    choices = ["--task=squad", "--head=N", "--target=greedy", "--exit-after=3", "--k=1,2"]
    rows = parsed(capsys, "--run", probe_run, *choices)["rows"]
    assert [(r["task"], r["layer"], r["k"]) for r in rows] == [("squad", 3, 1), ("squad", 3, 2)]


def test_figures_put_measured_points_beside_the_papers(
    capsys: pytest.CaptureFixture[str], probe_run: str
) -> None:
    figures = parsed(capsys, "--run", probe_run, "--figures")["figures"]
    measured = [(p["task"], p["k"]) for p in figures if p["source"] == "measured"]
    assert measured == [("squad", 1), ("squad", 4), ("cnn_dailymail", 1), ("cnn_dailymail", 4)]
    assert [p["source"] for p in figures[:2]] == ["paper", "measured"]


@pytest.mark.parametrize("form", ["csv", "markdown", "latex"])
def test_files_have_one_column_for_each_fact(
    capsys: pytest.CaptureFixture[str], probe_run: str, form: str
) -> None:
    out = printed(capsys, "--run", probe_run, "--format", form)
    assert "cnn" in out
    if form == "csv":
        assert out.splitlines()[0].startswith("task,layer,k,head,target,examples,tokens,match_rate")


def test_csv_of_a_run_and_of_the_figures_is_one_table(
    capsys: pytest.CaptureFixture[str], probe_run: str
) -> None:
    out = printed(capsys, "--run", probe_run, "--figures", "--format", "csv")
    head, *rows = csv.reader(io.StringIO(out))
    assert head[:3] == ["table", "task", "layer"]
    assert head[-1] == "source"
    assert head.count("match_rate") == 1
    assert {len(row) for row in rows} == {len(head)}
    sizes = Counter(row[0].split()[0] for row in rows)
    assert sizes == {"Theory": 2 * 3 * 2, "Figures": 18 + 4}


@pytest.mark.parametrize(
    "arguments", [["--figures"], NUMBERS, ["--run", "RUN"], ["--run", "RUN", "--figures"]]
)
def test_plots_are_written(
    capsys: pytest.CaptureFixture[str], probe_run: str, tmp_path: Path, arguments: list[str]
) -> None:
    picture = tmp_path / "a.svg"
    arguments = [probe_run if a == "RUN" else a for a in arguments]
    assert run(["theory", *arguments, "--plot", str(picture)]) == 0
    assert capsys.readouterr().err == f"picture: {picture}\n"
    assert picture.read_bytes().startswith(b"<?xml")


def test_a_picture_is_drawn_without_a_word_where_home_cannot_be_written_to(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    words = [sys.executable, "-m", "ppdbench", "theory", *NUMBERS, "--plot", str(picture)]
    homeless = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MPL"))}
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**homeless, "HOME": "/dev/null"}
    )
    assert done.stderr == f"picture: {picture}\n"


def test_torn_runs_are_used_and_reported(
    capsys: pytest.CaptureFixture[str], probe_run: str
) -> None:
    with (Path(probe_run) / "samples.jsonl").open("a") as file:
        file.write('{"example_id": "c"')
    assert run(["theory", "--run", probe_run]) == 0
    assert "incomplete" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "missing --layers, --exit-after, --k, --p;"),
        ("--layers 40 --k 3 --p 0.5", "missing --exit-after;"),
        ("--figures --tokens 5", "missing --layers"),
        ("--layers 40 --exit-after 19 --k 3 --p 0.5", "less than half of 40 layers"),
        ("--layers 40 --exit-after 40 --k 3 --p 0.5", "use 20..39"),
        ("--layers 40 --exit-after 20 --k 0 --p 0.5", "k=0"),
        ("--layers 40 --exit-after 20 --k 1,3 --p 0.5", "one value with --p"),
        ("--layers 40 --exit-after 20 --k x --p 0.5", "-k 'x'"),
        ("--layers 40 --exit-after 20 --k 3 --p 1.5", "p=1.5 is not a match rate"),
        ("--layers 40 --exit-after 20 --k 3 --p nan", "p=nan is not a match rate"),
        ("--layers 40 --exit-after 20 --k 3 --p 0.5 --tokens 0", "tokens=0"),
        ("--layers 40 --exit-after 20 --k 3 --p 0.5 --simulate 1", "needs 2 or more"),
        ("--layers 40 --exit-after 20 --k 3 --p 0.5 --head Y", "add --run DIR"),
        ("--run RUN --p 0.5", "--p and --run exclude each other"),
        ("--run RUN --tokens 5", "--tokens and --run exclude each other"),
        ("--run RUN --layers 4", "--layers and --run exclude each other"),
        ("--run RUN --simulate 5", "--simulate and --run exclude each other"),
        ("--run RUN --task nope", "this run has squad, cnn_dailymail"),
        ("--run RUN --exit-after 1", "less than half of 4 layers"),
        ("--run nowhere", "no run folder"),
        (
            "--layers 40 --exit-after 20 --k 3 --p 0.5 --plot=",
            "the name of a picture file is empty",
        ),
        ("--figures --plot a.gif", "use .png, .svg, .pdf"),
        ("--figures --plot /dev/null/a.png", "not a writable folder"),
    ],
)
def test_bad_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], probe_run: str, arguments: str, message: str
) -> None:
    words = [probe_run if word == "RUN" else word for word in arguments.split()]
    assert message in refused(capsys, *words)


def test_runs_without_probe_samples_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "no probe samples" in refused(capsys, "--run", str(write_run(tmp_path, [])))
    decode = write_run(tmp_path / "decode", [probe_sample()], kind="decode")
    assert "a decode run" in refused(capsys, "--run", str(decode))


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ppdbench theory --run" in printed(capsys, "--help")


def test_no_model_library_is_imported() -> None:
    code = (
        "import sys; from ppdbench.cli.main import run; run(['theory', '--figures']);"
        "sys.exit(bool({'torch', 'transformers', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
