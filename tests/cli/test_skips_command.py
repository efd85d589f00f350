"""`ppdbench skips` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli import main
from ppdbench.methods.draft_verify.skip_file import SkipSet, read_skips
from ppdbench.methods.draft_verify.strategy import DraftVerify

MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "2", "--max-new-tokens", "8"]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(main.COMMANDS, "skips", "Which blocks draft-verify skips.")


def run(*arguments: object) -> int:
    return main.run(["skips", *SMALL, *map(str, arguments)])


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run(*arguments, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("search", ["greedy", "bayes"])
def test_what_is_printed_is_what_lies_in_the_file(
    search: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = parsed(capsys, "--search", search, "--budget", 12)
    skips = SkipSet(*(tuple(result["skips"][name]) for name in ("attention", "mlp")))
    assert read_skips(Path("skip_layers.json")) == {MODEL: skips}
    assert 1 <= result["tried"] <= 12
    assert result["default"] == {"attention": [1], "mlp": [2]}
    assert 0 <= result["score"]["agreement"] <= 1
    assert 0 < result["score"]["cost"] < 1
    DraftVerify(skip="skip_layers.json")


def test_the_same_command_finds_the_same_set(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--search", "bayes", "--budget", 15, "--seed", 4)
    assert parsed(capsys, *arguments) == parsed(capsys, *arguments)


@pytest.mark.usefixtures("narrow")
def test_the_table_shows_both_sets_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--budget", 10, "--out", "new/mine.json") == 0
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    for words in ("found", "default", "agreement", "speed-up", "10 sets tried"):
        assert words in captured.out
    assert f"written: new/mine.json ({MODEL})" in captured.err


def test_other_models_in_the_file_stay(capsys: pytest.CaptureFixture[str]) -> None:
    Path("skip_layers.json").write_text('{"other": {"attention": [7], "mlp": []}}')
    assert run("--budget", 3) == 0
    assert list(read_skips(Path("skip_layers.json"))) == ["other", MODEL]


BAD = {
    "--budget 0": "--budget 0: use 1 or more",
    "--draft-length 0": "--draft-length 0: use 1 or more",
    "--limit 0": "--limit 0: use 1 or more",
    "--search best": "unknown search 'best'",
    "--out broken.json/skips.json": "cannot write broken.json/skips.json",
    "--out broken.json": "skip file broken.json is not JSON that can be used",
    "--max-new-tokens 1": "no output has a second token",
}


@pytest.mark.parametrize("arguments", sorted(BAD))
def test_bad_input_is_one_line(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.json").write_text("{")
    assert run(*arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert BAD[arguments] in captured.err


def test_an_empty_out_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--out", "") == 2
    assert "--out is empty" in capsys.readouterr().err
