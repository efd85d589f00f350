"""Answers in FastChat's format, from stored runs alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.errors import ConfigError
from ppdbench.report.answers import check_answers
from tests.filled import answers, write_answers

HEADER = {"model": {"name": "./models/tiny/"}, "started": "2026-01-02T03:04:05+00:00"}


def turn(
    question: object, number: int, text: str, turns: int = 2, **changes: Any
) -> dict[str, Any]:
    name = str(question) if number == 1 else f"{question}/{number}"
    made = {"example_id": name, "turn": number, "turns": turns, "method": "greedy"}
    return {**made, "verdict": "identical", "text": text, **changes}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_is_a_question_with_its_turns_in_order() -> None:
    samples = [turn(9, 2, " second\n"), turn(9, 1, " first "), turn(81, 1, "only", 1)]
    made, lacking = answers(HEADER, "greedy", samples)
    assert lacking == 0
    assert [set(line) for line in made] == [
        {"question_id", "answer_id", "model_id", "choices", "tstamp"}
    ] * 2
    assert made[0]["question_id"] == 9
    assert made[0]["choices"] == [{"index": 0, "turns": ["first", "second"]}]
    assert made[1]["choices"] == [{"index": 0, "turns": ["only"]}]
    assert {line["model_id"] for line in made} == {"tiny-greedy"}
    assert {line["tstamp"] for line in made} == {1767323045.0}


def test_questions_are_in_the_order_of_their_numbers() -> None:
    samples = [turn(name, 1, "x", 1) for name in (100, 9, "b", 81, "a/2")]
    made, _ = answers(HEADER, "greedy", samples)
    assert [line["question_id"] for line in made] == [9, 81, 100, "a/2", "b"]


def test_answer_ids_differ_and_are_the_same_when_written_again() -> None:
    samples = [turn(1, 1, "x", 1), turn(2, 1, "x", 1)]
    first, again = answers(HEADER, "greedy", samples), answers(HEADER, "greedy", samples)
    assert first == again
    assert len({line["answer_id"] for line in first[0]}) == 2
    assert answers(HEADER, "jacobi", samples)[0][0]["answer_id"] != first[0][0]["answer_id"]


def test_a_question_that_lacks_a_turn_is_left_out_and_counted(tmp_path: Path) -> None:
    failed = [turn(1, 1, "a"), turn(1, 2, "", verdict="failed")]
    not_done = [turn(3, 1, "d")]
    samples = [*failed, *not_done, turn(2, 1, "b"), turn(2, 2, "c")]
    assert write_answers(tmp_path / "a.jsonl", HEADER, samples) == {tmp_path / "a.jsonl": 2}
    assert [line["question_id"] for line in lines(tmp_path / "a.jsonl")] == [2]


def test_each_of_several_methods_gets_a_file_of_its_own(tmp_path: Path) -> None:
    samples = [turn(1, 1, "a", 1), turn(1, 1, "é", 1, method="lookahead:window=4")]
    found = write_answers(tmp_path / "new" / "a.jsonl", HEADER, samples)
    names = ["a-greedy.jsonl", "a-lookahead:window=4.jsonl"]
    assert [place.name for place in found] == names
    (line,) = lines(tmp_path / "new" / names[1])
    assert line["choices"][0]["turns"] == ["é"]
    assert line["model_id"] == "tiny-lookahead:window=4"


@pytest.mark.parametrize(
    ("path", "tasks", "message"),
    [
        ("a.txt", ["mt_bench"], r"a\.txt: no answers format has this suffix; use \.jsonl"),
        ("a.jsonl", ["gsm8k"], "one task whose questions have turns; use --task mt_bench"),
        ("a.jsonl", ["mt_bench", "spec_bench"], "one task whose questions have turns"),
        ("/dev/null/a.jsonl", ["mt_bench"], "cannot write"),
    ],
)
def test_what_cannot_be_written_is_refused(path: str, tasks: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_answers(path, tasks)


def test_the_command_writes_them_and_refuses_other_tasks_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--model", "synthetic:layers=2,hidden=32,heads=2,vocab=300", "--data", "builtin"]
    words = ["decode", *small, "--limit", "2", "--max-new-tokens", "4", "--warmup", "0"]
    assert run([*words, "--task", "mt_bench", "--answers", "a.jsonl", "--out", "run"]) == 0
    assert "answers: a.jsonl" in capsys.readouterr().err
    assert [line["question_id"] for line in lines(Path("a.jsonl"))] == [1001, 1002]
    assert all(len(line["choices"][0]["turns"]) == 2 for line in lines(Path("a.jsonl")))
    assert run([*words, "--task", "gsm8k", "--answers", "b.jsonl", "--out", "other"]) == 2
    assert not Path("other").exists()


def test_writing_answers_needs_no_torch(tmp_path: Path) -> None:
    source = (
        "import sys\nfrom ppdbench.report.answers import check_answers, write_fastchat_answers\n"
        "check_answers('a.jsonl', ['mt_bench'])\n"
        f"write_fastchat_answers('a.jsonl', {HEADER!r}, [])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True)
