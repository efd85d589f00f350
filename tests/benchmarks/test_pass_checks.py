"""The benchmark of pass checks: good passes never refused, planted bugs always, and both told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import pass_checks
from benchmarks.flat_bugs import FLAT_BUGS
from benchmarks.pass_checks import GOOD

TINY = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
FEW = ["--model", TINY, "--rows", "1,3", "--draws", "2", "--planted", "1", "--dtypes", "float32"]


def test_what_is_kept_is_what_was_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    assert pass_checks.main([*FEW, "--save", str(kept)]) == 0
    (sheet,) = pass_checks.sheets(json.loads(kept.read_text("utf-8")))
    assert sheet.header == ("passes", "flat, float32")
    assert sheet.rows == ((GOOD, "0 of 4"), *((name, "2 of 2") for name in FLAT_BUGS))


def test_what_was_checked_is_kept_and_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    tallies = {name: {"checks": 2, "refused": 2, "why": ""} for name in FLAT_BUGS}
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
    monkeypatch.setattr(pass_checks, "checked", None)
    assert pass_checks.main([*FEW, "--save", str(kept)]) == 1
    assert json.loads(kept.read_text("utf-8")) == content


def test_a_good_pass_that_is_refused_is_a_failure_and_so_is_a_bug_let_through() -> None:
    bugs = {name: {"checks": 2, "refused": 2} for name in FLAT_BUGS}
    assert pass_checks.is_right({GOOD: {"checks": 9, "refused": 0}, **bugs})
    assert not pass_checks.is_right({GOOD: {"checks": 9, "refused": 1}, **bugs})
    let_through = {**bugs, "matrices read coarsely": {"checks": 2, "refused": 1}}
    assert not pass_checks.is_right({GOOD: {"checks": 9, "refused": 0}, **let_through})
