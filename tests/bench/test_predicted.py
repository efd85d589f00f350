"""Speedups in batches predicted from the time of passes: by hand, and measured for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.bench import pass_model
from ppdbench.bench.crossover import crossovers
from ppdbench.bench.pass_model import sizes_up_to
from ppdbench.bench.predicted import predicted_speedups, step_ms
from ppdbench.cli.main import run
from ppdbench.runs.records import PassModel, StepParts
from ppdbench.runs.store import read_run
from tests.bench.test_crossover import METHODS, one

LABELS = {1: "lookup", 2: "lookup (batch 2)", 4: "lookup (batch 4)"}


def parts(rows: float, pass_ms: float, draft_pass: float = 0, draft: float = 0) -> StepParts:
    return StepParts(
        rows=rows, pass_ms=pass_ms, draft_pass_ms=draft_pass, draft_ms=draft, bookkeeping_ms=0
    )


def model(**steps: StepParts) -> PassModel:
    """Passes of 10 ms up to two rows, and 5 ms more for each row from there."""
    greedy = parts(1, 10)
    return PassModel(
        context=9, rows=[1, 2, 16], ms=[10, 10, 80], steps={"baseline": greedy, **steps}, seconds=0
    )


def test_a_batch_is_one_pass_over_the_rows_of_all() -> None:
    # Steps of two rows, ten of them for 19 tokens behind the first.
    sums = [one(e, 1, 100, 50, rows=[2] * 10, output_ids=list(range(20))) for e in range(5)]
    found = predicted_speedups(model(lookup=parts(2, 10)), LABELS, sums)
    assert found == pytest.approx({1: 1.9 * 10 / 10, 2: 1.9 * 10 / 20, 4: 1.9 * 20 / 40})
    told = crossovers(METHODS, sums, model(lookup=parts(2, 10)))
    assert told["lookup"].foretold == pytest.approx(2 ** (0.9 / 0.95))
    figures = told["lookup (batch 2)"].figures(2)
    assert figures["predicted_speedup"] == pytest.approx(0.95)
    assert figures["crossover_predicted"] == "pays up to 1.9"
    assert figures["crossover_predicted_batch"] == told["lookup"].foretold


def test_drafting_passes_grow_with_sequences_and_other_work_with_each() -> None:
    # Four sequences: 20 ms for a pass of as many rows, where one takes 10.
    made = model(lookup=parts(2, 10, draft_pass=3, draft=0.5))
    assert step_ms(made, made.steps["lookup"], 4, 2) == pytest.approx(40 + 3 * 2 + 4 * 0.5)


def test_layers_that_need_not_verify_stay_away_from_larger_passes() -> None:
    # A pass of two rows takes 10 ms, of which this method runs 8: drafting left the rest behind.
    made = model(lookup=parts(2, 8))
    assert step_ms(made, made.steps["lookup"], 4, 2) == pytest.approx(0.8 * 40)


def test_nothing_is_predicted_beyond_the_passes_that_were_timed_or_without_them() -> None:
    sums = [one(0, 1, 100, 50, rows=[8] * 10)]
    assert set(predicted_speedups(model(lookup=parts(8, 40)), LABELS, sums)) == {1, 2}
    assert predicted_speedups(model(), LABELS, sums) == {}
    assert predicted_speedups(None, LABELS, sums) == {}
    figures = crossovers(METHODS, sums)["lookup"].figures(1)
    assert figures["predicted_speedup"] is figures["crossover_predicted"] is None


def test_the_curve_has_points_up_to_its_end() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "6", "--max-new-tokens", "8"]
SMALL += ["--warmup", "1", "--method", "greedy", "--method", "prompt-lookup:max_draft=3"]
SMALL += ["--method", "layerskip"]


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["bench", *SMALL, "--format", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_of_several_sizes_time_passes_and_steps_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = bench(capsys, "--batch", "1,3", "--out", "run")
    assert all(row["predicted_speedup"] > 0 for row in rows if row["method"] != "greedy")
    assert all("predicted_speedup" not in row for row in rows if row["method"] == "greedy")
    told = read_run("run").header.pass_model
    assert told is not None
    assert set(told.steps) == {"baseline", "prompt-lookup", "layerskip"}
    # The widest step that either method may ask for, three times.
    assert told.rows[-1] >= 3 * 4
    assert told.steps["baseline"].rows == 1
    assert told.steps["layerskip"].draft_pass_ms > 0
    assert told.steps["prompt-lookup"].draft_pass_ms == 0

    def again(*_: object) -> None:
        raise AssertionError("a run that goes on keeps what was timed when it began")

    monkeypatch.setattr(pass_model, "measure_latency", again)
    assert bench(capsys, "--batch", "1,3", "--out", "run", "--resume") == rows
    bench(capsys, "--batch", "2", "--out", "one")
    assert read_run("one").header.pass_model is None
    assert run(["report", "run", "--out", "page.html"]) == 0
    assert "Broken lines are predicted" in Path("page.html").read_text()
