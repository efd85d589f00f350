"""`make demo`: bounded on a busy machine, and one screen at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks.demo import LESS, DemoStep, carry_out, shown, steps
from ppdbench.report.page.runs import read_runs
from tests.conftest import ROOT


@pytest.mark.usefixtures("narrow")
def test_one_screen_shows_match_rates_exactness_speedups_and_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    probe, bench = read_runs([ROOT / "results/readme/probe", ROOT / "results/readme/bench"])
    shown(probe, bench, Path("results/demo/report.html"))
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert re.search(r"squad +\d+\.\d .* 100\.0", text)
    assert re.search(r"prompt-lookup .* \d\.\d\dx", text)
    assert re.search(r"Exact: (\d+) of \1 outputs are greedy's, token by token", text)
    assert re.search(r"Promised by theory .* \d\.\d\dx on squad", text)
    assert "The page with all of it: results/demo/report.html" in text


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
    probe, bench = read_runs([ROOT / "results/readme/probe", tmp_path])
    shown(probe, bench, Path("report.html"))
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
