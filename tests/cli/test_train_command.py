"""`ppdbench train` as it is typed: presets, shapes, tasks, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.training.trainer import TrainConfig
from tests.training.made import LAYERSKIP, SMALL, assert_refused

Capture = pytest.CaptureFixture[str]


def test_a_new_model_comes_with_its_own_tokenizer(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = "layers=3,hidden=32,heads=2,vocab=320,context=64"
    new = ["train", "layerskip", "--shape", shape, "--text", "text.txt", *SMALL]
    assert run([*new, "--rotation", "2", "--steps", "3", "--out", "new"]) == 0
    capsys.readouterr()
    from ppdbench.engine.loading import ModelSpec, load

    loaded = load(ModelSpec(name="./new"))
    assert loaded.staged.n_layers == 3
    assert loaded.tokenizer.decode(loaded.tokenizer("final token").input_ids) == "final token"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sequence 200", "--sequence 200, but the model handles 96 tokens"),
        ("--rotation 9", "rotation=9, but this model has 4 layers"),
        ("--p-max 1.5", "p_max=1.5"),
        ("--e-scale 3", "e_scale=3.0"),
        ("--curriculum rotating", "did you mean rotational"),
        ("--preset continual", "did you mean continual-7b"),
        ("--steps 0", "steps=0"),
        ("--steps 5 --epochs 2", "exclude each other"),
        ("--learning-rate 0", "learning_rate=0"),
        ("--schedule linear", "use cosine or constant"),
        ("--micro-batch 9", "micro_batch=9; use 1..4"),
        ("--text nothing.txt", "neither a file nor a folder"),
        ("--shape layers=2", "give one of them"),
        ("--save-dtype int4", "--save-dtype 'int4': use float32"),
        ("--precision int4", "precision='int4'; use no"),
    ],
)
def test_bad_settings_are_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert_refused([*LAYERSKIP, "--out", "bad", *words.split()], message, capsys)


def test_without_a_rotation_the_presets_is_made_to_fit(home: Path, capsys: Capture) -> None:
    common = ["train", "layerskip", "--text", "text.txt", "--steps", "1", *SMALL]
    assert run([*common, "--model", "./model", "--out", "a"]) == 0
    assert "note: rotation 3 in place of 8" in capsys.readouterr().err
    shape = "layers=3,hidden=32,heads=2,vocab=320,context=64"
    assert run([*common, "--shape", shape, "--out", "b"]) == 0
    assert "note: rotation 2 in place of 23" in capsys.readouterr().err
    stored = json.loads((home / "b" / "training.json").read_text("utf-8"))
    assert stored["recipe"]["rotation"] == 2
    assert stored["processes"] == 1


def test_a_preset_brings_the_papers_settings_and_what_is_given_goes_before(
    home: Path, capsys: Capture
) -> None:
    def settings(*more: str) -> tuple[Any, ...]:
        words = ["--model", "./model", "--text", "text.txt", "--sequence", "16", "--dry-run"]
        words += ["--rotation", "3", "--split-by", "file", "--micro-batch", "2", "--out", "dry"]
        with pytest.MonkeyPatch.context() as patched:
            found: list[TrainConfig] = []
            patched.setattr(
                "ppdbench.cli.train_command.print_forecast",
                lambda training: found.append(training.config) or 0,
            )
            assert run(["train", "layerskip", *words, *more]) == 0
        config = found[0]
        return config.steps, config.batch_size, config.sequence, config.learning_rate

    assert settings("--preset", "scratch-7b") == (50_000, 128, 16, 8e-4)
    assert settings("--preset", "scratch-7b", "--p-max", "0") == (50_000, 128, 16, 3e-4)
    given = ["--preset", "topv2-1.5b", "--batch-size", "128", "--steps", "3"]
    assert settings(*given) == (3, 128, 16, 1e-4)
    assert settings("--learning-rate", "1", "--steps", "2") == (2, 128, 16, 1.0)


def test_every_exit_is_scored_on_tasks_afterwards(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = "layers=3,hidden=32,heads=2,vocab=300,context=1024"
    words = ["--shape", shape, "--text", "text.txt", "--out", "new", "--steps", "2", *SMALL]
    tasks = ["--task", "gsm8k", "--data", "builtin", "--limit", "1", "--rotation", "2"]
    assert run(["train", "layerskip", *words, *tasks]) == 0
    out = capsys.readouterr().out
    for name in ("early-exit:exit_layer=1", "early-exit:exit_layer=2", "greedy"):
        assert any(line.split()[:2] == ["gsm8k", name] for line in out.splitlines())
    assert (home / "new" / "exits" / "samples.jsonl").is_file()
