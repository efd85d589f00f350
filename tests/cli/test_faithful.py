"""`--verify-distribution` as it is typed: what makes no sense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.cli.main import run
from tests.bench.made import LAYERSKIP, WORDS


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "greedy"], "--verify-distribution is about drawn outputs"),
        (["--target", "beam"], "'beam'"),
        (["--target", "top-p", "--temperature", "0"], "temperature=0.0; use a value above 0"),
        (["--draws", "0"], "--draws 0; use 1 or more"),
        (["--top-k", "0"], "top-k sampling from 0 tokens; use 1 or more"),
        (["--temperature", "0"], "temperature=0.0; use a value above 0"),
        (["--repetition-penalty", "-1"], "repetition_penalty=-1.0; use a value above 0"),
        (["--logit-bias", "x"], "--logit-bias 'x': use a token id and a number"),
        (["--answers", "a.jsonl"], "--answers is not for --verify-distribution"),
        (["--warmup", "1"], "--warmup is not for --verify-distribution; leave it out"),
        (["--compile", "on"], "--compile on is not for --verify-distribution; leave it out"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = WORDS
    if "--target" in words:
        usual = WORDS[: WORDS.index("--target")]
    assert run([*usual, *LAYERSKIP, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ppdbench: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_timeline_of_what_is_not_timed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WORDS, "--method", "ppd:exit_after=1", "--timeline", "units.png"]) == 2
    assert "--timeline is not for --verify-distribution" in capsys.readouterr().err


def test_draws_without_the_test_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word != "--verify-distribution"]
    assert run([*words, *LAYERSKIP, "--draws", "3"]) == 2
    assert "--draws is for --verify-distribution" in capsys.readouterr().err
