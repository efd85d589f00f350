"""The benchmark of pass checks: good passes never refused, planted bugs always, and both told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import pass_checks
from benchmarks.pass_checks import BUGS, GOOD
from ppdbench.engine import artefacts

TINY = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
FEW = ["--model", TINY, "--rows", "1,3", "--draws", "2", "--planted", "1", "--dtypes", "float32"]


def test_what_is_kept_is_what_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "runner", artefacts.runner)  # given back afterwards
    kept = tmp_path / "kept.json"
    words = [*FEW, "--passes", "compiled,flat", "--traced", "--save", str(kept)]
    assert pass_checks.main(words) == 0
    (sheet,) = pass_checks.sheets(json.loads(kept.read_text("utf-8")))
    assert sheet.header == ("passes", "traced, float32", "flat, float32")
    bugs = [(name, "2 of 2", "2 of 2") for name in BUGS]
    assert sheet.rows == ((GOOD, "0 of 4", "0 of 4"), *bugs)


def test_what_was_checked_is_kept_and_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    tallies = {name: {"checks": 2, "refused": 2, "why": ""} for name in BUGS}
    content = {
        "model": TINY,
        "machine": "a machine",
        "checked": {
            "flat, float32": {
                "rows": "1,3",
                "tallies": {GOOD: {"checks": 4, "refused": 1, "why": "it was"}, **tallies},
            }
        },
    }
    kept.write_text(json.dumps(content), "utf-8")
    monkeypatch.setattr(pass_checks, "KINDS", {})
    assert pass_checks.main([*FEW, "--passes", "flat", "--save", str(kept)]) == 1
    assert json.loads(kept.read_text("utf-8")) == content


def test_a_good_pass_that_is_refused_is_a_failure_and_so_is_a_bug_let_through() -> None:
    bugs = {name: {"checks": 2, "refused": 2} for name in BUGS}
    assert pass_checks.is_right({GOOD: {"checks": 9, "refused": 0}, **bugs})
    assert not pass_checks.is_right({GOOD: {"checks": 9, "refused": 1}, **bugs})
    let_through = {**bugs, "matrices read coarsely": {"checks": 2, "refused": 1}}
    assert not pass_checks.is_right({GOOD: {"checks": 9, "refused": 0}, **let_through})
