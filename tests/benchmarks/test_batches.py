"""The benchmark of batches: what it keeps is shown again, and a tie on flat passes is a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from benchmarks import batches, readme, verdicts
from ppdbench.errors import ConfigError
from ppdbench.runs.workload import FinishedRun

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--limit", "5", "--max-new-tokens", "6", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undoubted: None) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_kept_is_shown_with_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--methods", "greedy", "prompt-lookup", "--batch", "1,2", "--against"]
    assert batches.main([*SMALL, *words, "--save", "kept.json"]) == 0
    shown = capsys.readouterr().out
    kept = batches.stored(Path("kept.json"))
    titles = [sheet.title for sheet in batches.sheets(kept)]
    assert [title.partition(": ")[0] for title in titles] == ["float32"] * 4
    assert all(title.split()[-1] in shown for title in titles)
    assert all(kept.machine in sheet.notes for sheet in batches.sheets(kept))
    beside = batches.sheets(kept)[-1]
    assert [row[0] for row in beside.rows] == [1, 2]
    assert all(cell is not None for row in beside.rows for cell in row)


def test_all_methods_of_the_embedded_model_are_exact_in_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The short form of `--exact`, which takes hours in full."""
    words = ["--exact", "--limit", "3", "--batch", "3", "--tasks", "gsm8k", "squad"]
    assert batches.main([*words, "--max-new-tokens", "6", "--dtype", "bfloat16"]) == 0
    told = capsys.readouterr()
    rows = [line.split() for line in told.out.splitlines() if "(batch 3)" in line]
    assert len(rows) >= 12
    # identical, tie, mismatch, inexact, failed
    assert {(row[-4], row[-3], row[-1]) for row in rows} == {("0", "0", "0")}
    assert "ppd (batch 3)" in told.err


@pytest.mark.parametrize("option", ["--dtype", "--against"])
def test_a_number_type_that_is_none_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        batches.main([*SMALL, option, "float32,bfloat61"])
    assert "bfloat61: use float32 or bfloat16" in capsys.readouterr().err


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FinishedRun]:
    """The runs that the benchmark makes, as they come."""
    made: list[FinishedRun] = []
    real = batches.decoded

    def kept(*arguments: Any) -> FinishedRun:
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(batches, "decoded", kept)
    return made


def test_a_single_tie_is_a_failure_where_passes_are_flat(runs: list[FinishedRun]) -> None:
    words = ["--exact", "--batch", "2", "--tasks", "squad", "--methods", "greedy"]
    assert batches.main([*SMALL, *words]) == 0
    (run,) = runs
    first, *others = run.samples
    for verdict, flat, wrong in (
        ("identical", True, False),
        ("tie", True, True),
        ("tie", False, False),
        ("mismatch", False, True),
    ):
        changed = replace(run, samples=[structs.replace(first, verdict=verdict), *others])
        assert verdicts.is_wrong(changed, flat=flat) is wrong


EXACT = ["--exact", "--batch", "1,2", "--methods", "greedy", "early-exit", "ppd"]


def test_counts_go_on_where_they_were_and_stand_on_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "results" / "batches" / "exact-small.json"
    words = [*SMALL, *EXACT, "--save", str(kept)]
    assert batches.main([*words, "--tasks", "squad"]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(batches, "run_decode", None)
        assert batches.main([*words, "--tasks", "squad", "gsm8k", "--kept"]) == 0
    found = verdicts.stored(kept)
    assert {each.task for each in found.methods} == {"squad"}
    counts = {(each.method, each.batch): each.verdicts for each in found.methods}
    assert counts["greedy", 1] == counts["greedy", 2] == {"identical": 5}
    assert sum(counts["early-exit", 2].values()) == 5
    assert counts["ppd", 2] == {}
    (why,) = found.lacking
    assert why.startswith("ppd (in batches): ")
    (sheet,) = verdicts.sheets(found)
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert rows["greedy"] == ("10 of 10", 0, 0, 0, 0, 0)
    assert found.machine in sheet.notes
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "BATCHES", kept.parent)
    block = "<!-- results/batches/exact-small.json: Verdicts of all methods -->\n<!-- end -->"
    assert "10 of 10" in readme.rendered(block)
    capsys.readouterr()


def test_tasks_are_counted_one_by_one(tmp_path: Path) -> None:
    def counts(*tasks: str, identical: int = 5, examples: int = 5) -> verdicts.VerdictCounts:
        methods = [
            verdicts.MethodVerdicts(
                method="greedy",
                task=task,
                dtype="float32",
                batch=2,
                verdicts={"identical": identical},
                changed=0,
            )
            for task in tasks
        ]
        return verdicts.VerdictCounts(
            machine="one", model="m", examples=examples, tokens=8, methods=methods, lacking=["x"]
        )

    path = tmp_path / "exact-m.json"
    assert verdicts.joined(counts("squad"), path) == counts("squad")
    batches.keep(counts("squad", "xsum"), path)
    found = verdicts.joined(counts("squad", "gsm8k", identical=4), path)
    assert {each.task: each.verdicts["identical"] for each in found.methods} == {
        "xsum": 5,
        "squad": 4,
        "gsm8k": 4,
    }
    assert found.lacking == ["x"]
    with pytest.raises(ConfigError, match="is of m, 5 examples, 8 tokens, these counts of m, 3"):
        verdicts.joined(counts("squad", examples=3), path)


def test_an_output_that_a_method_does_not_give_alone_is_a_failure(
    runs: list[FinishedRun],
) -> None:
    """Of methods that are not exact too, whose outputs greedy decoding says nothing about."""
    assert batches.main([*SMALL, *EXACT, "--tasks", "squad"]) == 0
    (run,) = runs
    assert not any(verdicts.changed(run).values())
    at = next(i for i, s in enumerate(run.samples) if s.method == "early-exit (batch 2)")
    samples = list(run.samples)
    samples[at] = structs.replace(samples[at], output_ids=[1, 2], verdict="inexact")
    other = replace(run, samples=samples)
    assert verdicts.changed(other)["early-exit (batch 2)"] == 1
    assert verdicts.is_wrong(other, flat=True)
    assert not verdicts.is_wrong(other, flat=False)
