"""Runs of several methods: what cannot run is left out, forgotten once it can, or comes later."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.methods import exits
from ppdbench.runs.store import read_run
from ppdbench.runs.validation import CHECKSUM, seal_of
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


def test_a_method_that_could_not_run_belongs_to_the_run(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *SMALL, "--out", "run", "--method", "greedy"]
    unready = ["--method", "odd:how=unready"]
    assert run([*words, *unready]) == 3
    before = read_run("run").header
    for other in ([], ["--method", "jacobi"]):
        capsys.readouterr()
        assert run([*words, *other, "--resume"]) == 2
        assert "method odd (only there)" in capsys.readouterr().err
        assert read_run("run").header == before
    assert run([*words, *unready, "--method", "jacobi", "--resume"]) == 3
    after = read_run("run").header
    assert [*after.methods] == ["greedy", "odd", "jacobi"]
    assert after.added.keys() == {"jacobi"}
    assert after.not_run == before.not_run


LOOKUP = ("--method", "greedy", "--method", "prompt-lookup")
MORE = (*LOOKUP, "--method", "lookahead")


def test_a_run_takes_in_further_methods(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", *SMALL, "--out", "run", "--format", "json"]
    monkeypatch.setattr(sys, "argv", ["ppdbench", *words, *LOOKUP])
    assert run([*words, *LOOKUP]) == 0
    begun, lines = read_run("run").header, Path("run/samples.jsonl").read_text("utf-8")
    assert begun.added is None
    monkeypatch.setattr(sys, "argv", ["ppdbench", *words, *MORE, "--resume"])
    assert run([*words, *MORE, "--resume"]) == 0
    after = read_run("run")
    assert Path("run/samples.jsonl").read_text("utf-8").startswith(lines), "what was there stays"
    assert [*after.header.methods] == ["greedy", "prompt-lookup", "lookahead"]
    assert [each.name for each in after.header.config.methods] == [*after.header.methods]
    assert after.header.memory.methods.keys() == after.header.methods.keys()
    assert after.header.added.keys() == {"lookahead"}
    assert after.header.added["lookahead"] >= begun.started
    assert after.header.command == ["ppdbench", *words, *MORE], "which makes all of it"
    by_method = {label: [s for s in after.samples if s.method == label] for label in MORE[1::2]}
    assert all(len(samples) == 4 for samples in by_method.values())
    assert all(s.verdict == "identical" for s in by_method["lookahead"])
    # Each has the times of greedy decoding that took turns with it.
    times = {label: {tuple(s.baseline_step_ms) for s in of} for label, of in by_method.items()}
    assert times["greedy"] == times["prompt-lookup"]
    assert not times["greedy"] & times["lookahead"]
    shown = json.loads(capsys.readouterr().out.partition("\n]\n")[2])
    added = {summary["label"]: summary["added"] for summary in shown}
    assert added == {"greedy": None, "prompt-lookup": None, **after.header.added}
    # The same once more finds nothing to do, and keeps when it came.
    assert run([*words, *MORE, "--resume"]) == 0
    assert read_run("run").header == after.header
    capsys.readouterr()
    assert run(["report", "run", "--format", "table"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    day = after.header.added["lookahead"][:10]
    assert f"Added to the run later, beside greedy decoding of that time: lookahead ({day})" in told


def test_a_method_that_cannot_run_comes_in_as_one(odd: list[str]) -> None:
    words = ["bench", *SMALL, "--out", "run", "--method", "greedy"]
    assert run(words) == 0
    assert run([*words, "--method", "odd:how=unready", "--resume"]) == 3
    header = read_run("run").header
    assert header.not_run == {"odd": "unit 1 is out of memory"}
    assert header.added.keys() == {"odd"}


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        (("--method", "greedy", "--method", "lookahead"), "method prompt-lookup (only there)"),
        (("--method", "greedy", "--method", "jacobi"), "name its methods beside the new ones"),
        (("--method", "greedy"), "repeat its options"),
        (("--method", "greedy", "--method", "prompt-lookup:max_draft=3"), "methods.prompt-lookup"),
        ((*MORE, "--seed", "3"), "config.seed (0 there, 3 here)"),
        ((*MORE, "--shard", "1/2"), "method lookahead (only here)"),
    ],
)
def test_what_a_run_does_not_take_in(
    methods: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *SMALL, "--out", "run"]
    shard = methods[-2:] if "--shard" in methods else ()
    assert run([*words, *LOOKUP, *shard]) == 0
    before = read_run("run")
    capsys.readouterr()
    assert run([*words, *methods, "--resume"]) == 2
    assert told in capsys.readouterr().err
    after = read_run("run")
    assert (after.header, [*after.samples]) == (before.header, [*before.samples])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cpu": {"model": "Another 9000"}}, "the processor differs from the stored run's (\"Anot"),
        ({"packages": {"torch": "1.0"}}, "the version of torch differs"),
        ({"torch": {"threads": 64}}, "the number of threads differs"),
    ],
)
def test_methods_of_another_machine_are_not_taken_in(
    change: dict[str, dict[str, str]], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *SMALL, "--out", "run"]
    assert run([*words, *LOOKUP]) == 0
    content = json.loads(Path("run/run.json").read_text("utf-8"))
    for part, values in change.items():
        content["environment"][part] |= values
    content[CHECKSUM] = seal_of({k: v for k, v in content.items() if k != CHECKSUM})
    Path("run/run.json").write_text(json.dumps(content), "utf-8")
    before = read_run("run").header
    capsys.readouterr()
    assert run([*words, *MORE, "--resume"]) == 2
    assert f"cannot add methods: {told}" in capsys.readouterr().err
    assert read_run("run").header == before
    assert run([*words, *LOOKUP, "--resume"]) == 0, "what is there goes on"


def test_what_did_not_take_turns_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", *SMALL, "--limit", "5", "--format", "markdown", "--method", "greedy"]
    peers = ["--against", "transformers"]
    assert run([*words, "--out", "run"]) == 0
    assert run([*words, *peers, "--out", "run", "--resume"]) == 0
    told = capsys.readouterr().out
    assert "| transformers:greedy |" in told
    assert "Beside transformers" not in told
    assert run([*words, *peers, "--out", "other"]) == 0
    assert "| greedy | transformers:greedy | 5 |" in capsys.readouterr().out
