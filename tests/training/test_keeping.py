"""What training keeps when something goes wrong: bad numbers, full disks, kills, wrong names."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppdbench.cli.main import run
from ppdbench.engine.synthetic import tokenizer
from ppdbench.files.lock import written_alone
from ppdbench.methods.layerskip import train as layerskip
from ppdbench.training.text import TextSpec, tokenized
from ppdbench.training.trainer import TrainConfig, Trainer
from tests.processes import ranks
from tests.training.made import LAYERSKIP, log, training

Capture = pytest.CaptureFixture[str]


def test_a_folder_that_another_process_writes_is_left_alone(home: Path, capsys: Capture) -> None:
    words = [*LAYERSKIP, "--steps", "2", "--out", "out"]
    with written_alone(home / "out"):
        assert run(words) == 2
    assert "out is being written by another process" in capsys.readouterr().err
    assert not (home / "out" / "train.jsonl").exists()
    assert run([*words, "--resume"]) == 0


@pytest.mark.parametrize("more", [["--start", "first"], ["--states", "kept"]])
def test_a_run_goes_on_with_all_the_options_that_it_had(
    home: Path, capsys: Capture, more: list[str]
) -> None:
    medusa = [*training("medusa"), "--heads", "1", "--steps", "2"]
    assert run([*medusa, "--out", "first"]) == 0
    assert run([*medusa, *more, "--out", "out"]) == 0
    capsys.readouterr()
    assert run([*medusa, "--out", "out", "--resume"]) == 2
    name = {"--start": "start", "--states": "states_kept"}[more[0]]
    assert f"cannot resume: {name} differs from the stored run" in capsys.readouterr().err
    assert run([*medusa, *more, "--out", "out", "--resume"]) == 0
    capsys.readouterr()
    assert run([*medusa, *more, "--out", "first", "--resume"]) == 2  # nor with more of them
    assert f"cannot resume: {name} differs" in capsys.readouterr().err


def steps_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are taken from now on."""
    taken: list[int] = []
    real = Trainer._step

    def step(self: Trainer, number: int) -> Any:
        taken.append(number)
        return real(self, number)

    monkeypatch.setattr(Trainer, "_step", step)
    return taken


def poisoned(how: Callable[[dict[str, Tensor], Any], Tensor], at: int) -> Any:
    """The loss of one step made otherwise, in every run of it at the rate that it begins with."""
    plain = layerskip.LayerSkipObjective.forward

    def forward(self: Any, rows: Tensor, t: int, total: int) -> dict[str, Tensor]:
        found = plain(self, rows, t, total)
        return {**found, "loss": how(found, self)} if t == at else found

    return forward


def no_loss(found: dict[str, Tensor], objective: Any) -> Tensor:
    return found["loss"] * float("nan")


def no_gradient(found: dict[str, Tensor], objective: Any) -> Tensor:
    """A loss like any other, whose slope is not finite."""
    weight = next(objective.parameters())
    return found["loss"] + (weight.sum() * 0).sqrt()


@pytest.mark.parametrize(
    ("how", "words"),
    [(no_loss, "the loss turned nan"), (no_gradient, "a gradient is no number any more")],
)
@pytest.mark.parametrize("clip", [[], ["--clip", "1"]])
def test_what_is_no_number_is_never_stepped_on_nor_kept(
    home: Path,
    how: Callable[[dict[str, Tensor], Any], Tensor],
    words: str,
    clip: list[str],
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [*LAYERSKIP, "--steps", "10", "--out", "nan", *clip]
    with monkeypatch.context() as patched:
        # Step 7 ends with a checkpoint: what it moved must not get there.
        patched.setattr(layerskip.LayerSkipObjective, "forward", poisoned(how, 7))
        assert run(command) == 2
    err = capsys.readouterr().err
    assert f"{words} at step 7" in err
    assert "last good checkpoint: step 4" in err
    assert [path.name for path in (home / "nan" / "checkpoints").iterdir()] == ["step-00000004"]
    # What it says can be done.
    taken = steps_run(monkeypatch)
    assert run([*command, "--resume", "--learning-rate", "5e-4", "--clip", "0.5"]) == 0
    assert taken == list(range(4, 10))
    rates = [line["learning_rate"] for line in log(home / "nan")]
    sound = TrainConfig(steps=10, learning_rate=1e-3)
    assert rates[:4] == [sound.rate(step) for step in range(4)]
    assert rates[4:] == [sound.rate(step) / 2 for step in range(4, 10)]
    stored = json.loads((home / "nan" / "training.json").read_text("utf-8"))
    assert stored["config"]["learning_rate"] == 5e-4
    assert "stopped" not in stored


def test_weights_that_are_no_numbers_are_not_kept(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer._step

    def step(self: Trainer, number: int) -> Any:
        found = real(self, number)
        if number == 6:
            with torch.no_grad():
                next(self._parameters()).fill_(math.inf)
        return found

    monkeypatch.setattr(Trainer, "_step", step)
    assert run([*LAYERSKIP, "--steps", "7", "--out", "end"]) == 2
    assert "a weight is no number any more at step 7" in capsys.readouterr().err
    assert not (home / "end" / "model.safetensors").exists()
    assert [path.name for path in (home / "end" / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_run_that_turns_nan_before_its_first_checkpoint_begins_anew(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*LAYERSKIP, "--steps", "3", "--out", "early"]
    with monkeypatch.context() as patched:
        patched.setattr(layerskip.LayerSkipObjective, "forward", poisoned(no_loss, 1))
        assert run(command) == 2
    assert "last good checkpoint: none yet" in capsys.readouterr().err
    assert (home / "early" / "training.json").exists()
    taken = steps_run(monkeypatch)
    assert run([*command, "--resume", "--learning-rate", "5e-4"]) == 0
    assert taken == [0, 1, 2]


def test_a_sound_run_keeps_its_rate(home: Path, capsys: Capture) -> None:
    command = [*LAYERSKIP, "--steps", "4", "--out", "run"]
    assert run(command) == 0
    assert run([*command, "--resume", "--learning-rate", "5e-4"]) == 2
    assert "config differs" in capsys.readouterr().err


def test_a_killed_run_loses_at_most_one_interval(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*LAYERSKIP, "--steps", "14", "--out", "killed"]
    real = Trainer._step

    def killed(self: Trainer, number: int) -> Any:
        if number == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", killed)
        with ranks(command, Path("said")) as (alone,):
            assert alone.wait() == -signal.SIGKILL
    taken = steps_run(monkeypatch)
    assert run([*command, "--resume"]) == 0
    assert taken == list(range(8, 14))


@pytest.mark.parametrize(("limit", "kept"), [(60_000, 0), (None, 8)])
def test_a_full_disk_is_told_as_that_and_leaves_nothing_half_written(
    home: Path, limit: int | None, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint does not fit, or what is written after the last one."""
    text = home / "text.txt"
    text.write_text(text.read_text("utf-8")[:10_000], "utf-8")
    save, step = layerskip.LayerSkipObjective.save, Trainer._step

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    def first(self: Trainer, number: int) -> Any:
        full()
        return step(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(layerskip.LayerSkipObjective, "save", lambda *a: (full(), save(*a)))
        if limit:
            patched.setattr(Trainer, "_step", first)
        with ranks([*LAYERSKIP, "--steps", "8", "--out", "full"], Path("said")) as (alone,):
            assert alone.wait() == 2, alone.said()
    what = "a checkpoint" if limit else "what was trained"
    assert f"cannot write {what} to full" in alone.said()
    assert "unexpected" not in alone.said()
    there = sorted(path.name for path in (home / "full" / "checkpoints").glob("*"))
    assert there == [f"step-{n:08d}" for n in (4, 8) if n <= kept]
    # With room again the same command goes on, from the last checkpoint or the beginning.
    assert run([*LAYERSKIP, "--steps", "8", "--out", "full", "--resume"]) == 0
    assert (home / "full" / "model.safetensors").is_file()


def test_another_model_or_vocabulary_is_not_resumed(home: Path, capsys: Capture) -> None:
    command = [*LAYERSKIP, "--steps", "2", "--out", "run"]
    assert run(command) == 0
    words = (home / "model" / "tokenizer.json").read_text("utf-8")
    other = json.loads(words)
    vocab = other["model"]["vocab"]
    a, b = sorted(vocab, key=vocab.__getitem__)[-2:]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    other["model"]["merges"] = []
    (home / "model" / "tokenizer.json").write_text(json.dumps(other), "utf-8")
    assert run([*command, "--resume"]) == 2
    assert "vocabulary differs" in capsys.readouterr().err
    (home / "model" / "tokenizer.json").write_text(words, "utf-8")
    weights = home / "model" / "model.safetensors"
    tensors = load_file(weights)
    next(iter(tensors.values())).add_(1)
    save_file(tensors, weights, {"format": "pt"})
    assert run([*command, "--resume"]) == 2
    assert "weight_hash differs" in capsys.readouterr().err


@pytest.fixture
def fresh() -> Iterator[None]:
    """A process has one precision for life; not this one."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh")
def test_mixed_precision_goes_on_exactly_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*LAYERSKIP, "--steps", "9", "--precision", "bf16", "--micro-batch", "2"]
    assert run([*command, "--out", "whole"]) == 0
    real = Trainer._step

    def stopped(self: Trainer, number: int) -> Any:
        if number == 6:
            raise KeyboardInterrupt
        return real(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", stopped)
        assert run([*command, "--out", "stopped"]) == 130
    taken = steps_run(monkeypatch)
    assert run([*command, "--out", "stopped", "--resume"]) == 0
    assert taken == list(range(4, 9))
    assert log(home / "stopped") == log(home / "whole")
    AcceleratorState._reset_state(reset_partial_state=True)
    full = [*LAYERSKIP, "--steps", "9", "--micro-batch", "2", "--out", "full"]
    assert run(full) == 0
    assert log(home / "full") != log(home / "whole")


# Tokens on disk


def test_a_torn_stamp_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three", "utf-8")
    spec, words = TextSpec(sources=(str(tmp_path / "a.txt"),)), tokenizer(300, 512)
    first = np.array(tokenized(spec, words, 300, tmp_path / "t.bin"))
    (tmp_path / "t.json").write_text('{"sources": ["a', "utf-8")
    assert (tokenized(spec, words, 300, tmp_path / "t.bin") == first).all()
    json.loads((tmp_path / "t.json").read_text("utf-8"))


def test_tokens_of_another_text_are_never_left_with_a_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, path = tokenizer(300, 512), tmp_path / "t.bin"
    specs = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text of {name}", "utf-8")
        specs.append(TextSpec(sources=(str(tmp_path / f"{name}.txt"),)))
    first = np.array(tokenized(specs[0], words, 300, path))
    with monkeypatch.context() as patched:
        patched.setattr("ppdbench.training.text.write_whole", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # killed before the stamp is there
            tokenized(specs[1], words, 300, path)
    assert (np.array(tokenized(specs[0], words, 300, path)) == first).all()


def test_a_run_that_was_killed_before_it_had_a_header_begins(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*LAYERSKIP, "--steps", "2", "--out", "early"]

    def killed(self: Trainer, facts: Any) -> None:
        raise KeyboardInterrupt  # as far as the folder goes, what a kill leaves

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_write_state", killed)
        assert run(command) == 130
    assert not (home / "early" / "training.json").exists()
    assert (home / "early" / "tokens.json").exists()
    taken = steps_run(monkeypatch)
    assert run([*command, "--resume"]) == 0
    assert taken == [0, 1]
