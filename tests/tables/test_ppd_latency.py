"""Table 3 of the first paper, its printed numbers beside runs whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.bench.test_pipelined import FACTS, sample
from tests.tables.made import write_run
from tests.tables.stored import with_header

METHOD = {"name": "ppd", "exact": True, "options": {}, "loaded": {}}


def stored(folder: Path, tasks: list[str], verdict: str = "identical", **facts: Any) -> Path:
    """Five examples a task; 5 ms a token alone, 4 ms with units."""
    rows = [
        {
            **sample([1, 0, 1, 1, 0], 4.0),
            "task": task,
            "example_id": str(number),
            "method": "ppd",
            "verdict": verdict,
            "accepted": [0] * 4,
            "proposed": [0] * 4,
            "draft_ms": [],
            "prefill_ms": 10.0,
            "baseline_step_ms": [4.0] * 4,
            "baseline_again_ms": 16.0,
            "peak_memory_bytes": 1,
        }
        for task in tasks
        for number in range(5)
    ]
    write_run(folder, "bench", rows, n_layers=4, synthetic=True)
    known = {**FACTS, **facts}
    method = {**METHOD, "options": {name: known[name] for name in ("form", "k")}}
    with_header(folder, methods={"ppd": method}, facts={"ppd": known})
    return folder


def rows_of(capsys: pytest.CaptureFixture[str], *runs: Path) -> list[dict[str, Any]]:
    assert run(["table", "ppd/3", *map(str, runs), "--format", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def test_printed_and_measured_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(capsys, stored(tmp_path / "a", ["squad", "gsm8k", "cnn_dailymail"]))
    by_row = {(row["task"], row["form"], row["k"]): row for row in rows}
    ours = by_row["squad", "split", 3]
    assert (ours["match rate paper"], ours["match rate"]) == (0.4724, 0.6)
    assert (ours["s paper"], ours["s"]) == (13.712, pytest.approx(0.001 * (10 + 127 * 4)))
    assert ours["speedup paper"] == pytest.approx(14.994 / 13.712)
    both = (12 + 127 * 5) / (10 + 127 * 4)
    assert ours["speedup"] == pytest.approx(both)
    assert ours["speedup diff"] == pytest.approx(both - 14.994 / 13.712)
    assert ours["theory paper"] == pytest.approx(1 / (1 - 0.4724 / 2))
    assert ours["theory"] == pytest.approx(1 / 0.7)
    greedy = by_row["squad", "greedy", 0]
    assert (greedy["s paper"], greedy["s"]) == (14.994, pytest.approx(0.001 * (12 + 127 * 5)))
    # The paper's k = 1 was not run here, and gsm8k is not in the paper.
    assert by_row["squad", "split", 1]["s"] is None
    assert {row["task"] for row in rows} == {"squad", "cnn_dailymail"}


def test_forms_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = stored(tmp_path / "a", ["squad"])
    replicated = stored(tmp_path / "b", ["squad"], form="replicated", k=1, units=2)
    rows = [row for row in rows_of(capsys, split, replicated) if row["s"] is not None]
    assert {(row["form"], row["k"]) for row in rows} == {
        ("greedy", 0),
        ("split", 3),
        ("replicated", 1),
    }


def test_each_run_has_the_greedy_decoding_that_its_speedup_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three, one = stored(tmp_path / "a", ["squad"]), stored(tmp_path / "b", ["squad"], k=1)
    samples = one / "samples.jsonl"
    lines = [json.loads(line) for line in samples.read_text("utf-8").splitlines()]
    for line in lines:
        line.pop("checksum")
        line["greedy_by_threads"]["1"]["step_ms"] *= 2
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    rows = {row["form"]: row for row in rows_of(capsys, three, one) if row["s"] is not None}
    by_k = {row["k"]: row for row in rows_of(capsys, three, one) if row["form"] == "split"}
    assert set(rows) == {"greedy (for k=3)", "greedy (for k=1)", "split"}
    for k in (1, 3):
        over = rows[f"greedy (for k={k})"]["s"] / by_k[k]["s"]
        assert by_k[k]["speedup"] == pytest.approx(over)
    assert run(["table", "ppd/3", str(one)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Our outputs have 5 tokens at most: s is what 128 would take at their pace." in told


def test_no_speedup_stands_beside_a_mismatch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "a", ["squad"], verdict="mismatch")
    assert run(["table", "ppd/3", str(folder), "--format", "json"]) == 1
    captured = capsys.readouterr()
    assert f"ppdbench: {folder}: 5 outputs differ from greedy" in captured.err
    assert all(row["speedup"] is None for row in json.loads(captured.out)["rows"])


@pytest.mark.usefixtures("narrow")
def test_random_weights_are_said_to_be_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "a", ["squad"])
    assert run(["table", "ppd/3", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "LLaMA-2-13B, 40 layers" in out
    assert "m, 4 layers, random weights; hardware: a processor" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("needs a run: ppdbench table ppd/3 --run, which is: ppdbench bench", ["ppd/3"]),
        ("unknown table", ["ppd/33", "x"]),
        ("nowhere", ["ppd/3", "nowhere"]),
    ],
)
def test_bad_input_is_one_line(
    words: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["table", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_a_run_without_units_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path / "a", ["squad"], form="inline", units=1)
    assert run(["table", "ppd/3", str(folder)]) == 2
    assert "form=split or form=replicated" in capsys.readouterr().err
