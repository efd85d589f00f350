"""Table 3 of the paper, its printed numbers beside runs whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.bench.test_pipelined import FACTS, sample


def stored(folder: Path, tasks: list[str], **facts: Any) -> Path:
    folder.mkdir()
    header = {
        "schema_version": 1,
        "kind": "bench",
        "config": {"strict": False, "target": {"kind": "greedy"}},
        "data": {},
        "model": {"name": "m", "dtype": "float32", "synthetic": True, "n_layers": 4},
        "environment": {"cpu": {"model": "a processor"}},
        "methods": {"ppd": {"name": "ppd", "exact": True, "options": {}, "loaded": {}}},
        "facts": {"ppd": {**FACTS, **facts}},
    }
    (folder / "run.json").write_text(json.dumps(header), "utf-8")
    rows = [
        {
            **sample([1, 0, 1, 1, 0], 4.0),
            "task": task,
            "example_id": str(number),
            "method": "ppd",
            "accepted": [0] * 4,
            "proposed": [0] * 4,
            "draft_ms": [],
            "prefill_ms": 10.0,
            "baseline_step_ms": [4.0] * 4,
            "baseline_again_ms": 16.0,
            "peak_memory_bytes": 1,
        }
        for task in tasks
        for number in range(2)
    ]
    (folder / "samples.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows), "utf-8")
    return folder


def rows_of(capsys: pytest.CaptureFixture[str], *runs: Path) -> list[dict[str, Any]]:
    assert run(["table", "ppd/3", *map(str, runs), "--format", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def test_printed_and_measured_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(capsys, stored(tmp_path / "a", ["squad", "gsm8k", "cnn_dailymail"]))
    by_row = {(row["task"], row["method"], row["k"]): row for row in rows}
    ours = by_row["squad", "split", 3]
    assert (ours["p paper"], ours["p"]) == (0.4724, 0.6)
    assert (ours["s paper"], ours["s"]) == (13.712, pytest.approx(0.001 * (10 + 127 * 4)))
    assert (ours["speedup paper"], ours["speedup"]) == ("1.09x", "1.25x")
    assert (ours["theory paper"], ours["theory"]) == ("1.31x", "1.43x")
    greedy = by_row["squad", "greedy", 0]
    assert (greedy["s paper"], greedy["s"]) == (14.994, pytest.approx(0.001 * (10 + 127 * 5)))
    # The paper's k = 1 has no counterpart here, and gsm8k none in the paper.
    assert len(rows) == 4


def test_forms_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = stored(tmp_path / "a", ["squad"])
    replicated = stored(tmp_path / "b", ["squad"], form="replicated", k=1, units=2)
    found = {(row["method"], row["k"]) for row in rows_of(capsys, split, replicated)}
    assert found == {("greedy", 0), ("split", 3), ("replicated", 1)}


def test_the_setting_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path / "a", ["squad"])
    assert run(["table", "ppd/3", str(folder), "--format", "markdown"]) == 0
    said = capsys.readouterr().out
    assert "LLaMA-2-13B" in said
    assert "m (4 layers, float32, random weights) on a processor" in said


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("needs a run: ppdbench bench", ["ppd/3"]),
        ("unknown table", ["ppd/33", "x"]),
        ("nowhere", ["ppd/3", "nowhere"]),
    ],
)
def test_bad_input_is_one_line(
    words: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["table", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_a_run_without_units_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path / "a", ["squad"], form="inline", units=1)
    assert run(["table", "ppd/3", str(folder)]) == 2
    assert "form=split or form=replicated" in capsys.readouterr().err
