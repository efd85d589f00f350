"""A run that is not done says so in its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.report.page.document import page
from ppdbench.report.page.runs import read_runs
from tests.filled import lacking as unfinished
from tests.report.page import made

DATA = {"gsm8k": {"metrics": [], "sha256": "aaaa", "examples": 4, "version": 1}}


def test_what_is_missing_is_counted_by_method_and_target() -> None:
    about = made.methods("swift", "broken")
    head = made.header("bench", methods=about, not_run={"broken": "no"}, data=DATA)
    samples = [made.decoded("swift", str(n)) for n in range(3)]
    assert unfinished(head, samples) == (
        "Unfinished: 1 of 4 samples are missing; finish it with --resume."
    )
    failed = made.decoded("swift", "3", verdict="failed", output_ids=[])
    assert unfinished(head, [*samples, failed]) is None
    targets = [{"kind": "greedy"}, {"kind": "top-k"}]
    probe = made.header("probe", data=DATA, config__targets=targets)
    assert "5 of 8" in str(unfinished(probe, samples))


def test_later_turns_are_no_further_examples() -> None:
    head = made.header("bench", methods=made.methods("swift"), data=DATA)
    turns = [made.decoded("swift", f"{n}/{t}", turn=t) for n in range(3) for t in (1, 2)]
    assert "1 of 4" in str(unfinished(head, turns))


def test_turns_are_counted_where_the_run_says_how_many_there_are() -> None:
    data = {"gsm8k": {**DATA["gsm8k"], "examples": 3, "turns": 6}}
    head = made.header("bench", methods=made.methods("swift"), data=data)
    turns = [made.decoded("swift", f"{n}/{t}", turn=t) for t in (1, 2) for n in range(3)]
    assert unfinished(head, turns) is None
    assert "1 of 6" in str(unfinished(head, turns[:-1]))
    assert "3 of 6" in str(unfinished(head, turns[:3]))  # the first turns alone
    probe = made.header("probe", data=data, config__targets=[{"kind": "greedy"}])
    assert unfinished(probe, [made.probed(str(n)) for n in range(3)]) is None


def stored(folder: Path, kind: str, n: int) -> Path:
    if kind == "probe":
        samples = [made.probed(str(i)) for i in range(n)]
        return made.write(folder, made.header(kind, data=DATA), samples)
    decoded = [made.decoded("swift", str(i), 2.0) for i in range(n)]
    return made.write(folder, made.header(kind, methods=made.methods("swift"), data=DATA), decoded)


@pytest.mark.parametrize("kind", ["probe", "decode", "bench"])
def test_tables_and_the_page_say_that_a_run_is_unfinished(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, told in ((3, True), (4, False)):
        folder = stored(tmp_path / str(n), kind, n)
        run(["report", str(folder), "--format", "markdown"])
        assert ("Unfinished: 1 of 4" in capsys.readouterr().out) == told
        assert ("Unfinished: 1 of 4" in page(read_runs([folder])).text) == told


def test_theory_of_an_unfinished_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["theory", "--run", str(stored(tmp_path / "run", "probe", 3))]
    assert run(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Unfinished: 1 of 4 samples are missing" in out
    assert "Fewer than 5 examples" in out
    assert run([*words, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "1 of 4" in found["unfinished"]
