"""The course that all trainings share: refused early, planned, watched, measured and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli import training as training_cli
from ppdbench.cli.main import run
from ppdbench.training.heads import HeadsObjective
from tests.families import stock_model
from tests.training.made import LAYERSKIP, TRAIN_HEADS, TWO_STEPS, assert_refused

Capture = pytest.CaptureFixture[str]


def test_a_dry_run_trains_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LAYERSKIP, "--epochs", "2", "--out", "dry", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "hours in all" in out and "measuring what a step needs" in err
    size = sum(p.numel() for p in stock_model("llama-mha-tied", vocab_size=300).parameters())
    shown = {line[:34].strip(): line[34:].strip() for line in out.splitlines()}
    assert shown["parameters"] == shown["of these trained, or added"] == f"{size:,}"
    assert shown["memory of the weights"] == f"{4 * size / 2**20:.1f} MiB"
    assert shown["memory of gradients and optimizer"] == f"{12 * size / 2**20:.1f} MiB"
    assert not (home / "dry" / "train.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--held-out nowhere.txt", "text nowhere.txt is neither a file nor a folder"),
        ("--task gsm9k --data builtin", "did you mean gsm8k"),
        ("--task gsm8k --data nowhere.jsonl", "nowhere.jsonl"),
        ("--precision fp16", "--precision fp16 needs a GPU"),
        ("--beta2 2", "beta2=2.0; use"),
        ("--seed -1", "seed=-1; use 0 or more"),
        ("--epochs inf", "--epochs inf: use a number above 0"),
    ],
)
def test_what_would_fail_in_the_end_fails_in_the_beginning(
    home: Path, words: str, message: str, capsys: Capture
) -> None:
    command = [*LAYERSKIP, "--out", "run", *words.split()]
    if "epochs" not in words:
        command += ["--steps", "4"]
    assert_refused(command, message, capsys)
    assert not (home / "run" / "train.jsonl").exists()


def test_rate_and_loss_are_shown_while_it_trains(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Watched:
        def __enter__(self) -> Any:
            return lambda text, done, total: said.append(f"{text} {done}/{total}")

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(training_cli, "progress", Watched)
    assert run([*LAYERSKIP, "--steps", "3", "--out", "run"]) == 0
    assert len(said) == 3
    assert all(" tokens/s " in line and line.startswith("loss ") for line in said)
    assert said[-1].endswith("3/3")


def test_where_no_training_began_there_is_nothing_to_resume(home: Path, capsys: Capture) -> None:
    assert run([*LAYERSKIP, "--steps", "2", "--out", "never", "--resume"]) == 2
    assert "never holds no training run, so nothing to resume" in capsys.readouterr().err
    assert not (home / "never").exists()


def test_held_out_text_is_measured_as_far_as_asked_and_told(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plain = HeadsObjective.quality

    def counted(self: Any, ids: Any, sequence: int, watch: Any) -> Any:
        seen.append(len(ids))
        return plain(self, ids, sequence, watch)

    monkeypatch.setattr(HeadsObjective, "quality", counted)
    words = [*TRAIN_HEADS, *TWO_STEPS, "--rank", "2", "--layers", "1", "--held-out", "text.txt"]
    assert run([*words, "--held-out-tokens", "100", "--out", "few"]) == 0
    assert "measured on the first 100 of" in capsys.readouterr().err
    assert seen == [100]
