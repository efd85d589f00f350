"""`benchmarks.sampled_cost`: whole trees alone count, and the share is of their passes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import sampled_cost
from benchmarks.sampled_cost import Cost, JudgedStep, MeasuredCosts
from ppdbench.decoding.decoded import Decoded, StepRecord


def test_the_rule_is_taken_out_of_steps_of_whole_trees() -> None:
    whole = StepRecord(30.0, rows=9, proposed=8, accepted=2, draft_ms=6.0)
    last = StepRecord(20.0, rows=4, proposed=3, accepted=1, draft_ms=1.0)
    decoded = Decoded((1, 2, 3), 5.0, (whole, last, whole), "length")
    steps = sampled_cost.judged(decoded, [1.5, 9.0, 0.5], 8)
    assert steps == [JudgedStep(1.5, 22.5, 2), JudgedStep(0.5, 23.5, 2)]


def test_the_share_is_of_medians_with_the_machine_below() -> None:
    steps = [JudgedStep(1.0, 20.0, 1), JudgedStep(2.0, 40.0, 3), JudgedStep(90.0, 41.0, 2)]
    costs = [
        Cost(dtype="float32", target="top-k 20", siblings="drawn", steps=steps),
        Cost(dtype="float32", target="top-k 20", siblings="chosen", steps=[]),
    ]
    about = {"machine": "a machine", "model": "tiny", "threads": 1, "nodes": 8}
    (sheet,) = sampled_cost.sheets(MeasuredCosts(**about, costs=costs))
    assert sheet.rows == (("float32", "top-k 20", "drawn", 3, 2.0, 2.0, 40.0, 0.05),)
    assert "a machine" in sheet.notes[0]


def test_trees_of_the_embedded_model_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cost.json"
    asked = ["--model", "reference", "--dtype", "float32", "--nodes", "6", "--limit", "1"]
    asked += ["--max-new-tokens", "14"]
    monkeypatch.setattr(sampled_cost, "DEPTH", 2)
    monkeypatch.setattr(sys, "argv", ["sampled_cost", *asked, "--save", str(file)])
    sampled_cost.main()
    found = sampled_cost.stored(file)
    assert [(c.siblings, c.target) for c in found.costs] == [
        (siblings, target) for siblings in sampled_cost.SIBLINGS for target in sampled_cost.TARGETS
    ]
    assert all(step.rule_ms > 0 and step.pass_ms > 0 for cost in found.costs for step in cost.steps)
    assert all(cost.steps for cost in found.costs)
    assert "Sampled verification of 6 nodes, reference" in capsys.readouterr().out
