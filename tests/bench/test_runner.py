"""Runs of several methods: what cannot run is left out, and forgotten once it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.runs.store import read_run
from tests.cli.swept import SMALL, Drafting


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_method_whose_units_do_not_start_is_left_out_of_a_bench(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *SMALL, "--method", "greedy", "--method", "odd:how=unready", "--out", "run"]
    assert run(words) == 3
    header = read_run("run").header
    assert header.not_run == {"odd": "unit 1 is out of memory"}
    assert odd == ["unready0"]  # closed all the same
    assert run([*words[:-4], "--method", "odd:how=unready", "--out", "other"]) != 0


def test_a_bench_that_goes_on_forgets_what_could_not_run_before(
    odd: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", *SMALL, "--method", "greedy", "--method", "odd:how=unready", "--out", "run"]
    assert run(words) == 3
    before = read_run("run").header
    assert "odd" not in before.memory.methods
    monkeypatch.setattr(Drafting, "begin", lambda self: None)
    monkeypatch.setattr(Drafting, "facts", {"seen": 1}, raising=False)
    monkeypatch.setattr(Drafting, "loaded", {"addon": "abc"}, raising=False)
    assert run([*words, "--resume"]) == 0
    after = read_run("run")
    assert after.header.not_run == {}
    assert after.header.facts == {"odd": {"seen": 1}}
    assert after.header.methods["odd"].loaded == {"addon": "abc"}
    assert after.header.memory.methods.keys() == {"greedy", "odd"}
    assert after.header.environment == before.environment
    assert sum(s.method == "odd" for s in after.samples) == 4
    # What was read since is part of the run: another addon is another method.
    monkeypatch.setattr(Drafting, "loaded", {"addon": "abd"})
    assert run([*words, "--resume"]) == 2
