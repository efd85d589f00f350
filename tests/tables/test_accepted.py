"""Runs that a table would show as something else, and the same thing in two runs, are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.tables.stored import about, decoded, guessed, sample, table, with_header

METHODS = {
    "greedy": about("greedy"),
    "medusa": about("medusa", addon="", tree=""),
    "prompt-tokens": about("prompt-tokens", addon="", tree=""),
}
DRAWN = {"kind": "top-p", "top_p": 1.0, "top_k": 3, "temperature": 0.7}


def stored(folder: Path, *tasks: str, labels: tuple[str, ...] = (*METHODS,), **more: Any) -> str:
    drawn = more.get("target", {}).get("kind", "greedy") != "greedy"
    verdict = {"verdict": "sampled"} if drawn else {}
    samples = [
        sample(task, label, n, **verdict) for task in tasks for label in labels for n in range(5)
    ]
    return decoded(folder, {label: METHODS[label] for label in labels}, samples, **more)


def refused(capsys: pytest.CaptureFixture[str], name: str, *runs: str) -> str:
    assert run(["table", name, *runs]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize(
    ("name", "task"),
    [("hidden_transfer/1", "gsm8k"), ("layerskip/2", "humaneval"), ("prompt_ppd/claims", "gsm8k")],
)
def test_drawn_tokens_are_not_shown_as_greedy(
    name: str, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = stored(tmp_path / "a", task, target=DRAWN)
    said = refused(capsys, name, drawn)
    assert "draws its tokens (top-p from 100% of the probability at temperature 0.7)" in said
    assert f"and table {name} is of greedy decoding" in said


def test_a_run_in_which_no_method_could_run_says_why_and_not_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = {"medusa": "no add-on for m"}
    methods = {"medusa": METHODS["medusa"]}
    said = refused(capsys, "prompt_ppd/1", decoded(tmp_path / "a", methods, [], not_run=why))
    assert "holds no finished sample; medusa did not run: no add-on for m" in said
    said = refused(capsys, "prompt_ppd/1", decoded(tmp_path / "b", METHODS, [], not_run=why))
    assert "holds no finished sample; finish it with --resume" in said


def test_a_table_with_drawn_rows_takes_one_way_to_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    greedy = stored(tmp_path / "greedy", "mt_bench")
    drawn = stored(tmp_path / "drawn", "mt_bench", target=DRAWN)
    notes = " ".join(table(capsys, "prompt_ppd/1", greedy, drawn)["notes"])
    assert "drawn at temperature 0.7." in notes
    hot = stored(tmp_path / "hot", "mt_bench", target={**DRAWN, "temperature": 1.0})
    assert "draw their tokens otherwise" in refused(capsys, "prompt_ppd/1", drawn, hot)


def test_several_sequences_at_once_are_not_shown_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "a", "gsm8k")
    methods = {label: {**told, "batch": 4} for label, told in METHODS.items()}
    with_header(Path(folder), methods=methods)
    said = refused(capsys, "prompt_ppd/claims", folder)
    assert "decodes 4 sequences together" in said


def test_the_same_in_two_runs_is_refused_and_other_tasks_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = stored(tmp_path / "a", "gsm8k"), stored(tmp_path / "b", "gsm8k", labels=("medusa",))
    assert f"medusa on gsm8k is in {one} and in {two}; give one" in refused(
        capsys, "hidden_transfer/1", one, two
    )
    other = stored(tmp_path / "c", "xsum")
    rows = table(capsys, "hidden_transfer/1", one, other)["rows"]
    assert {r["task"] for r in rows if r["method"] == "medusa" and r["here"]} == {"gsm8k", "xsum"}
    # What the table is not about may be in both.
    both = stored(tmp_path / "d", "xsum", "squad"), stored(tmp_path / "e", "gsm8k", "squad")
    table(capsys, "hidden_transfer/1", *both)


def test_guesses_on_the_same_examples_may_be_in_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {"medusa": {1: [0, 3]}, "prompt-tokens": {1: [0, 0]}}
    methods = {label: METHODS[label] for label in ranks}
    runs = [guessed(tmp_path / name, ranks, methods) for name in ("a", "b")]
    table(capsys, "prompt_ppd/claims", *runs)
    header = json.loads((tmp_path / "b" / "run.json").read_text("utf-8"))
    with_header(tmp_path / "b", config={**header["config"], "max_new_tokens": 9})
    assert "medusa on alpaca is in" in refused(capsys, "prompt_ppd/claims", *runs)


def test_a_table_of_an_unfinished_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "a", "gsm8k")
    source = {"version": 1, "sha256": "dd", "examples": 9}
    with_header(Path(folder), data={"gsm8k": source})
    words = f"{folder}: Unfinished: 12 of 27 samples are missing"
    assert words in " ".join(table(capsys, "hidden_transfer/1", folder)["notes"])
    assert run(["table", "hidden_transfer/1", folder]) == 0
    assert words in " ".join(capsys.readouterr().out.split())
