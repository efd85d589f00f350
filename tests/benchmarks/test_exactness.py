"""The benchmark of exactness: every verdict is counted once, and one that is wrong is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exactness

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--tasks", "squad", "mt_bench", "--limit", "1", "--max-new-tokens", "4"]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_output_of_every_exact_method_is_counted_and_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*SMALL, "--dtype", "bfloat16", "--save", "kept.json"]
    assert exactness.main(words) == 0
    content = json.loads(Path("kept.json").read_text("utf-8"))
    (found,) = content["types"].values()
    assert (found["tasks"], found["prompts"]) == (2, 3), "a question of MT-Bench has two turns"
    assert {"greedy", "layerskip", "ppd", "lookahead"} <= found["verdicts"].keys()
    assert "early-exit" not in found["verdicts"]
    assert all(counts == {"identical": 3} for counts in found["verdicts"].values())
    (sheet,) = exactness.sheets(content)
    assert any("Left out: speculative: no draft_model" in note for note in sheet.notes)
    outputs = 3 * len(found["verdicts"])
    assert sheet.rows[-1] == ("all", f"{outputs} of {outputs}")
    assert content["machine"] in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")


def test_an_example_of_two_runs_is_counted_once() -> None:
    words = [*SMALL, "--dtype", "float32"]
    assert exactness.main([*words, "--out", "first"]) == 0
    more = [*words, "--limit", "2", "--out", "more", "--beside", "first", "--save", "kept.json"]
    assert exactness.main([*more, "--tasks", "squad"]) == 0
    found = json.loads(Path("kept.json").read_text("utf-8"))["types"]["float32"]
    assert (found["tasks"], found["prompts"]) == (2, 4)
    assert all(counts == {"identical": 4} for counts in found["verdicts"].values())
    assert found["tokens"] == 4 * 4 * len(found["verdicts"])


def test_methods_of_another_run_are_counted_beside_those_asked_for() -> None:
    words = [*SMALL, "--dtype", "float32"]
    assert exactness.main([*words, "--methods", "greedy", "jacobi", "--out", "first"]) == 0
    more = [*words, "--methods", "prompt-lookup:max_draft=2", "--out", "more", "--beside", "first"]
    assert exactness.main([*more, "--save", "kept.json"]) == 0
    found = json.loads(Path("kept.json").read_text("utf-8"))["types"]["float32"]
    assert list(found["verdicts"]) == ["greedy", "jacobi", "prompt-lookup"]
    assert all(counts == {"identical": 3} for counts in found["verdicts"].values())


def content(verdicts: dict[str, dict[str, int]]) -> dict[str, Any]:
    found = {"prompts": 3, "tasks": 1, "tokens": 9, "passes": "eager", "left_out": {}}
    types = {"float32": {"verdicts": verdicts, **found}}
    return {"model": "m", "machine": "a machine", "types": types, "lacking": []}


@pytest.mark.parametrize("verdict", ["mismatch", "failed"])
def test_one_wrong_output_is_a_failure_and_told(verdict: str) -> None:
    fine = {"greedy": {"identical": 3}, "layerskip": {"identical": 2, "tie": 1}}
    assert not exactness.is_wrong(content(fine))
    wrong = content({**fine, "medusa": {"identical": 2, verdict: 1}})
    assert exactness.is_wrong(wrong)
    (sheet,) = exactness.sheets(wrong)
    assert sheet.rows == (
        ("greedy", "3 of 3"),
        ("layerskip", "2 of 3, 1 tie"),
        ("medusa", f"2 of 3, 1 {verdict}"),
        ("all", f"7 of 9, 1 tie, 1 {verdict}"),
    )
