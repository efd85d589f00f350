"""What a training run wrote of itself, damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.training.record import read_log, read_state

SOUND = {"step": 0, "loss": 2.5, "tokens": 64}


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "it is not JSON"), ("[" * 100_000, "it is not JSON"), ("[1]", "expected object")],
)
def test_a_damaged_state_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "training.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=f"training.json is damaged: .*{words}"):
        read_state(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"loss": 2.5, "tokens": 64}, "line 2: step is missing"),
        ({**SOUND, "step": "one"}, "line 2: step: expected int, got str"),
        ({**SOUND, "loss": [2.5]}, r"line 2: \[\.\.\.\]: expected float, got array"),
        ([1], "line 2 is not JSON|line 2: expected object"),
    ],
)
def test_a_damaged_line_of_the_log_is_named(tmp_path: Path, line: object, words: str) -> None:
    path = tmp_path / "train.jsonl"
    text = json.dumps(line)
    text = text if text.endswith("}") else f"{text}}}"
    path.write_text(f"{json.dumps(SOUND)}\n{text}\n", "utf-8")
    with pytest.raises(DataError, match=words):
        read_log(path)


def test_a_line_that_was_cut_off_is_left_out_and_numbers_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    skipped = {**SOUND, "step": 1, "gradient_norm": float("inf")}
    path.write_text(f'{json.dumps(SOUND)}\n{json.dumps(skipped)}\n{{"step": 2', "utf-8")
    assert json.dumps(read_log(path)) == json.dumps([SOUND, skipped])
    assert read_log(tmp_path / "none") == []
