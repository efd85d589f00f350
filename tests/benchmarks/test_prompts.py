"""Prompts to train drafters on: training rows of tasks, asked as the tasks ask them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import prompts

ROWS = {
    "gsm8k": {"question": "How many are {} and one?", "answer": "#### 2"},
    "topv2": {"utterance": "wake me at {}", "semantic_parse": "[IN:ASK ]", "domain": "alarm"},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Splits of two tasks, one to train on and one that is scored."""
    for task, row in ROWS.items():
        (tmp_path / task).mkdir()
        for split in ("train", "test"):
            lines = [
                json.dumps({key: text.format(f"{split} {n}") for key, text in row.items()})
                for n in range(9)
            ]
            (tmp_path / task / f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


def mixed(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["prompts", *map(str, words)])
    prompts.main()


def texts(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]


def test_training_rows_of_all_tasks_are_asked_and_some_are_held_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, unseen = tmp_path / "prompts.jsonl", tmp_path / "unseen.jsonl"
    mixed(monkeypatch, data, file, "--held-out", unseen)
    asked = [*texts(file), *texts(unseen)]
    assert len(asked) == len(set(asked)) == 18
    assert len(texts(unseen)) == 2
    assert sum("How many are train" in text for text in asked) == 9
    assert sum("wake me at train" in text for text in asked) == 9
    assert not any("test" in text for text in asked)
    few = tmp_path / "few.jsonl"
    mixed(monkeypatch, data, few, "--limit", 4)
    assert sum("How many" in text for text in texts(few)) == 2  # kinds in turns


def test_a_folder_without_training_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        mixed(monkeypatch, tmp_path, tmp_path / "prompts.jsonl")
    assert "no training split of a task" in capsys.readouterr().err
