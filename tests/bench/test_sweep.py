"""Sweeps: every cell on every example, or the better half on twice as many."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.bench import added_times, sweep
from ppdbench.cli.main import run
from ppdbench.engine import loading
from ppdbench.methods import exits
from ppdbench.runs.records import TIMES
from ppdbench.runs.store import RunFolder, read_run
from tests.cli.swept import LOOKUP, SMALL, parsed, swept
from tests.filled import sample_key, to_line


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def timeless(folder: str) -> list[dict[str, Any]]:
    samples = [
        {k: v for k, v in msgspec.to_builtins(s).items() if k not in TIMES}
        for s in read_run(folder).samples
    ]
    return sorted(samples, key=lambda s: (s["example_id"], s["method"]))


# Whole runs


def test_every_cell_is_decoded_on_every_example_and_one_is_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = parsed(capsys, *LOOKUP, "--limit", "5")
    assert len(found["cells"]) == 6
    assert {(c["identical"], c["n_examples"]) for c in found["cells"]} == {(5, 5)}
    assert found["complete"] is True
    assert found["best"] in {c["label"] for c in found["cells"]}
    assert found["command"].startswith("ppdbench decode --method prompt-lookup --set max_draft=")
    stored = read_run("run")
    assert stored.header.kind == "sweep"
    assert len(stored.samples) == 30


def test_outputs_are_those_of_bench_with_the_same_settings() -> None:
    swept("--method", "prompt-lookup", "--grid", "max_draft=2,4")
    methods = [w for n in (2, 4) for w in ("--method", f"prompt-lookup:max_draft={n}")]
    assert run(["bench", *SMALL, *methods, "--out", "bench"]) == 0
    assert timeless("run") == timeless("bench")


def test_at_most_so_many_cells_are_ready_at_once(
    odd: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AT_ONCE", 2)
    swept("--method", "odd", "--grid", "n=1,2,3")
    # Each before and after passes are compiled, then in heats of two, the last one closed first.
    alone = ["works1", "works2", "works3"]
    assert odd == [*alone, *alone, "works2", "works1", "works3"]


def test_a_draft_model_is_loaded_once_for_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = loading.load

    def counted(spec: loading.ModelSpec, **how: Any) -> loading.Loaded:
        loads.append(spec.name)
        return load(spec, **how)

    monkeypatch.setattr(loading, "load", counted)
    drafter = "synthetic:layers=1,hidden=32,heads=2,vocab=300"
    swept(
        "--method", "speculative", "--set", f"draft_model={drafter}", "--grid", "draft_length=1,2"
    )
    assert loads == [drafter]


# Halving


def test_halving_measures_the_better_half_on_twice_as_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Outputs take a few ms each: what the machine does beside them is more than their times differ.
    monkeypatch.setattr(added_times, "SLACK_MS", math.inf)
    found = parsed(capsys, *LOOKUP, "--search", "halving", "--limit", "5")
    rungs = [(6, 2), (3, 3), (2, 5)]
    assert [(rung["cells"], rung["examples"]) for rung in found["rungs"]] == rungs
    assert run(["sweep", "--show", "run", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert sorted(c["n_examples"] for c in found["cells"]) == [2, 2, 2, 3, 5, 5]
    left = {c["standing"] for c in found["cells"] if c["n_examples"] < 5}
    assert left == {"too few examples"}
    first, second = (next(c for c in found["cells"] if c["n_examples"] == n) for n in (5, 3))
    assert first["label"] == found["best"]
    assert second["label"] != found["second"]


def test_an_interrupted_halving_goes_on_with_the_cells_it_had_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(*LOOKUP, "--search", "halving", out="whole")
    lines = (Path("whole") / "samples.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 18
    capsys.readouterr()
    for kept in (0, 5, 12, 14, 17):
        folder = Path(f"cut-{kept}")
        folder.mkdir()
        (folder / "run.json").write_bytes((Path("whole") / "run.json").read_bytes())
        (folder / "samples.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:9])
        swept(*LOOKUP, "--search", "halving", "--resume", out=folder.name)
        assert (folder / "samples.jsonl").read_bytes().startswith(b"".join(lines[:kept]))
        if kept >= 12:  # the first rung was done, so its times had decided
            assert timeless(folder.name) == timeless("whole")
        assert len(read_run(folder).samples) == 18


def test_results_are_kept_as_they_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    append, seen = RunFolder.append, []

    def interrupted(self: RunFolder, sample: Any) -> None:
        append(self, sample)
        seen.append(sample)
        if len(seen) == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", interrupted)
        swept(*LOOKUP, code=130)
    assert len(read_run("run").samples) == 7
    swept(*LOOKUP, "--resume")
    swept(*LOOKUP, out="whole")
    assert timeless("run") == timeless("whole")


def test_a_resumed_sweep_keeps_what_each_cell_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    def knowing(exit_layer: int) -> None:
        """Let the probe find that all is known after some layers and nothing before."""
        shares = {layer: (float(layer >= exit_layer),) for layer in range(1, 14)}
        monkeypatch.setattr(exits, "found_among", lambda *_: shares)

    deep = ["--model", "synthetic:layers=14,hidden=16,heads=1,vocab=300", "--limit", "1"]
    deep += ["--method", "layerskip", "--grid", "reuse=kvq,kv"]
    knowing(2)
    swept(*deep)
    begun = read_run("run").header
    assert [cell["exit_layer"] for cell in begun.chosen.values()] == [2, 2]
    samples = Path("run/samples.jsonl")
    samples.write_text(samples.read_text("utf-8").splitlines(keepends=True)[0], "utf-8")
    knowing(9)
    swept(*deep, "--resume")
    after = read_run("run")
    assert (after.header.chosen, len(after.samples)) == (begun.chosen, 2)
    drafted = after.samples[1].proposed[0]
    assert drafted == min(begun.chosen[after.samples[1].method]["draft_length"], 4)


def test_a_sweep_is_resumed_with_its_own_grid_alone(capsys: pytest.CaptureFixture[str]) -> None:
    swept("--method", "prompt-lookup", "--grid", "max_draft=2,4")
    swept("--method", "prompt-lookup", "--grid", "max_draft=2,5", "--resume", code=2)
    assert "cannot resume" in capsys.readouterr().err


# What goes wrong


def test_a_cell_that_fails_is_recorded_and_the_sweep_goes_on(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "sweep",
                *SMALL,
                "--out",
                "run",
                "--method",
                "odd",
                "--grid",
                "how=works,breaks,absent,unready,dies",
            ]
        )
        == 3
    )
    captured = capsys.readouterr()
    assert "absent did not run: odd: no weights at hand" in captured.err
    assert "unready did not run: unit 1 is out of memory" in captured.err
    assert "8 examples failed" in captured.err
    assert "NOT RUN" in captured.out
    errors = {s.method: getattr(s, "error", None) for s in read_run("run").samples}
    assert errors == {
        "odd:how=works": None,
        "odd:how=breaks": "RuntimeError: no draft today",
        "odd:how=dies": "unit 1 died",
    }


def test_cells_that_were_chosen_stay_chosen_whatever_times_say_later() -> None:
    swept(*LOOKUP, "--search", "halving", out="whole")
    folder = Path("whole")
    chosen = json.loads((folder / "run.json").read_bytes())["rungs"][1]["going"]
    lines = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    told = [json.loads(line) for line in lines]
    for one in told:
        del one["checksum"]
        slow = 1e4 if one["method"] in chosen else 1.0
        one["step_ms"] = [slow * ms for ms in one["step_ms"]]
    before = {sample_key(one) for one in told}
    assert {one["method"] for one in told} > set(chosen)
    (folder / "samples.jsonl").write_bytes(b"".join(map(to_line, told[:-1])))
    swept(*LOOKUP, "--search", "halving", "--resume", out="whole")
    again = (folder / "samples.jsonl").read_bytes().splitlines()
    assert {sample_key(json.loads(line)) for line in again} == before
