"""`make demo`: bounded on a busy machine, and one screen at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks.demo import LESS, DemoRuns, DemoStep, carry_out, shown, steps
from ppdbench.engine.gguf import source
from ppdbench.report.page.runs import read_runs
from tests.conftest import ROOT

STORED = DemoRuns(*read_runs([ROOT / "results/readme/probe", ROOT / "results/readme/bench"]))


@pytest.mark.usefixtures("narrow")
def test_one_screen_shows_match_rates_exactness_speedups_and_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown(STORED, Path("results/demo/report.html"))
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert re.search(r"squad +\d+\.\d .* 100\.0", text)
    assert re.search(r"prompt-lookup .* \d\.\d\dx", text)
    assert re.search(r"Exact: (\d+) of \1 outputs are greedy's, token by token", text)
    assert re.search(r"Promised by theory .* \d\.\d\dx on squad", text)
    assert "The page with all of it: results/demo/report.html" in text


@pytest.mark.usefixtures("narrow")
def test_two_models_share_a_screen_and_warnings_stay(capsys: pytest.CaptureFixture[str]) -> None:
    shown(STORED, Path("results/demo/report.html"), STORED)
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert text.count("How early is the next token known?") == 2
    assert text.count("Degenerate outputs") == 2
    assert "so it pays from" not in text
    assert "What a method that loses would need" in text


@pytest.mark.parametrize("there", [True, False])
def test_the_real_model_is_shown_where_it_was_fetched(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    if there:
        file.touch()
    monkeypatch.setattr(source, "smollm2", lambda: file)
    work = steps(tmp_path, ["bench"], busy=False)
    assert [step.log for step in work[2:]] == ["smollm2-probe", "smollm2-bench"] * there
    if there:
        assert sum(step.quiet_s for step in work) <= 150
        assert all(step.words[1:3] == ("--model", "smollm2") for step in work[2:])


def test_layers_that_have_a_column_lie_far_apart() -> None:
    assert demo.spread([1, 2, 3]) == [1, 2, 3]
    assert demo.spread(range(1, 31)) == [1, 5, 8, 12, 15, 19, 23, 26, 30]


def test_a_busy_machine_gets_one_thread_and_less_to_do(tmp_path: Path) -> None:
    quiet = steps(tmp_path, ["bench", "--limit", "8"], busy=False)
    busy = steps(tmp_path, ["bench", "--limit", "8"], busy=True)
    for slow, fast in zip(busy[:2], quiet[:2], strict=True):
        assert slow.words == (*fast.words, *LESS)  # of an option given twice the last counts


def test_a_step_that_takes_too_long_is_stopped_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("probe", "--offline", "--out", str(tmp_path / "run"))  # torch alone takes longer
    assert carry_out(DemoStep("", 0, words, "probe"), tmp_path, 0.3) == demo.INTERRUPTED
    assert "stopped after" in capsys.readouterr().out


@pytest.mark.usefixtures("narrow")
def test_a_comparison_stopped_in_its_first_task_is_shown_as_far_as_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = ROOT / "results/readme/bench"
    (tmp_path / "run.json").write_bytes((stored / "run.json").read_bytes())
    first = (stored / "samples.jsonl").read_text("utf-8").splitlines(keepends=True)[:6]
    (tmp_path / "samples.jsonl").write_text("".join(first), "utf-8")
    shown(DemoRuns(*read_runs([ROOT / "results/readme/probe", tmp_path])), Path("report.html"))
    out = capsys.readouterr().out
    assert "gsm8k: 1 example" in out
    assert "Unfinished" in out


def test_how_busy_a_machine_is_is_a_share() -> None:
    in_use = demo.share_in_use(0.05)
    assert in_use is None or 0 <= in_use <= 1


def test_a_step_that_fails_ends_the_demo_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "share_in_use", lambda: 0.0)
    monkeypatch.setattr(demo, "carry_out", lambda step, folder, longest_s: 2)
    assert demo.main([str(tmp_path), "bench"]) == 2
    assert "ended with exit code 2" in capsys.readouterr().out
