"""The benchmark of batches: what it keeps is shown again, and a tie on flat passes is a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from benchmarks import batches
from ppdbench.bench import claims
from ppdbench.runs.workload import FinishedRun

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--limit", "5", "--max-new-tokens", "6", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims, "closes", lambda samples: True)


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


def test_a_single_tie_is_a_failure_where_passes_are_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    real = batches.decoded

    def kept(*arguments: Any) -> FinishedRun:
        runs.append(real(*arguments))
        return runs[-1]

    monkeypatch.setattr(batches, "decoded", kept)
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
        assert batches.is_wrong(changed, flat=flat) is wrong
