"""`bench --methods all`: each method of ours once, and a reason for each that cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.bench.everything import every_method
from ppdbench.cli.main import run
from ppdbench.methods import METHODS
from ppdbench.runs.store import read_run

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300"
OURS = {name for name in METHODS.names() if ":" not in name}


def test_on_the_embedded_model_every_method_of_ours_runs() -> None:
    choices, lacking = every_method("reference")
    assert {choice.name for choice in choices} == OURS
    assert lacking == []


def test_parts_that_came_with_the_embedded_model_are_named() -> None:
    options = {choice.name: choice.options for choice in every_method("reference")[0]}
    assert options["speculative"] == {"draft_model": "reference-draft"}
    assert options["rest"] == {"datastore": "reference"}
    assert options["layerskip"] == {}


def test_on_another_model_what_needs_a_part_is_left_out_with_its_reason() -> None:
    choices, lacking = every_method(MODEL)
    trained = {"eagle", "hidden-transfer", "medusa", "prompt-tokens"}
    assert {choice.name for choice in choices} == OURS - trained - {"speculative", "rest"}
    assert {why.split(":")[0] for why in lacking} == trained | {"rest", "speculative"}
    assert any("ppdbench datastore" in why for why in lacking)


def test_all_methods_on_ones_own_model_leave_out_what_cannot_run_and_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["bench", "--methods", "all", "--model", MODEL, "--data", "builtin", "--task", "xsum"]
    words += ["--limit", "1", "--max-new-tokens", "3", "--warmup", "0", "--compile", "off"]
    assert run([*words, "--target", "top-p", "--format", "json", "--out", "run"]) == 0
    captured = capsys.readouterr()
    ran = {s["method"] for s in json.loads(captured.out)}
    assert {"greedy", "layerskip", "prompt-lookup", "lookahead"} <= ran
    left_out = [line for line in captured.err.splitlines() if line.startswith("left out: ")]
    assert any("no add-on" in line for line in left_out)
    header = read_run("run").header
    assert "lookahead" not in (header.left_out or {})
    assert header.not_run == {}
    assert run(["report", "run", "--format", "json"]) == 0
