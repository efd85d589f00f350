"""Runs of several methods: what cannot run is left out, and forgotten once it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.methods import exits
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


def test_a_run_that_goes_on_keeps_what_methods_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    def knowing(exit_layer: int) -> None:
        """Let the probe find that all is known after some layers and nothing before."""
        shares = {layer: (float(layer >= exit_layer),) for layer in range(1, 14)}
        monkeypatch.setattr(exits, "found_among", lambda *_: shares)

    words = ["bench", "--model", "synthetic:layers=14,hidden=16,heads=1,vocab=300,context=1024"]
    words += ["--data", "builtin", "--task", "xsum", "--max-new-tokens", "6", "--warmup", "0"]
    words += ["--method", "layerskip", "--against", "transformers", "--out", "run"]
    knowing(2)
    assert run([*words, "--limit", "1"]) == 0
    begun = read_run("run").header
    kept = begun.chosen["layerskip"]
    assert kept["exit_layer"] == 2
    assert begun.methods["layerskip"].options["exit_layer"] == 0
    assert begun.facts["layerskip"]["exit_probe"]["matches"]["1"] == [0.0]
    assert begun.chosen["transformers:early-exit"] == kept
    knowing(9)
    assert run([*words, "--limit", "2", "--resume"]) == 0
    after = read_run("run")
    assert after.header.chosen == begun.chosen
    assert after.header.facts == begun.facts
    lengths = {s.proposed[0] for s in after.samples if s.method == "layerskip"}
    assert lengths == {min(kept["draft_length"], 4)}, "one token is greedy's, one the model's own"
    assert run([*words, "--limit", "2", "--out", "other"]) == 0
    assert read_run("other").header.chosen["layerskip"]["exit_layer"] == 9
