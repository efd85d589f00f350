"""Whole trainings: a killed run loses nothing, and processes share one batch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from ppdbench.cli.main import run
from ppdbench.training.trainer import TrainConfig, Trainer
from tests.families import stock_model
from tests.processes import meeting, ranks, wait_for
from tests.training.conftest import HELD_OUT
from tests.training.made import LAYERSKIP, SMALL, log, training

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]


def test_a_trained_model_is_an_ordinary_folder_and_early_layers_read_better(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    common = ["--steps", "80", *HELD_OUT, "--clip", "1", "--learning-rate", "3e-3"]
    recipe = ["--p-max", "0.1", "--e-scale", "1"]
    assert run([*LAYERSKIP, *common, *recipe, "--out", "skipping"]) == 0
    plain = [*LAYERSKIP, *common, "--p-max", "0", "--no-early-exit-loss", "--out", "plain"]
    assert run(plain) == 0
    capsys.readouterr()
    AutoModelForCausalLM.from_pretrained("skipping")
    losses = {
        name: [q["loss"] for q in json.loads((home / name / "quality.json").read_text("utf-8"))]
        for name in ("skipping", "plain")
    }
    # By 0.2 and 0.4 for every seed tried: far beyond what another processor's rounding does.
    assert losses["skipping"][0] < losses["plain"][0] - 0.1
    assert losses["skipping"][1] < losses["plain"][1] - 0.1
    assert losses["skipping"][2] < losses["plain"][2]
    assert (home / "skipping" / "loss.png").is_file()


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*LAYERSKIP, "--steps", "14", "--out", "whole"]) == 0
    command = [*LAYERSKIP, "--steps", "14", "--out", "killed"]
    real = Trainer._step

    def slow(self: Trainer, number: int) -> Any:
        time.sleep(0.15)
        return real(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", slow)
        with ranks(command, Path("said")) as (alone,):
            wait_for((home / "killed" / "checkpoints" / "step-00000004").exists)
            alone.kill()
    assert len(log(home / "killed")) < 14
    assert run([*command, "--resume"]) == 0
    assert log(home / "killed") == log(home / "whole")


def test_the_same_seed_gives_the_same_losses_where_the_model_has_dropout_of_its_own(
    home: Path,
) -> None:
    stock_model("gpt2", vocab_size=300, resid_pdrop=0.3).save_pretrained(home / "model")
    plain = [*LAYERSKIP, "--steps", "3"]
    for name in ("one", "two"):
        torch.rand(3)  # drawn by somebody else in between
        assert run([*plain, "--out", name]) == 0
    assert log(home / "one") == log(home / "two")
    assert run([*plain, "--seed", "1", "--out", "other"]) == 0
    assert log(home / "other") != log(home / "one")


def test_ctrl_c_in_the_middle_of_a_step_leaves_a_checkpoint_of_whole_steps(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*LAYERSKIP, "--steps", "10", "--out", "whole"]) == 0
    command = [*LAYERSKIP, "--steps", "10", "--out", "stopped"]
    plain = Trainer._step

    def interrupted(self: Trainer, step: int) -> Any:
        found = plain(self, step)  # the weights have moved, the step is not counted yet
        if step == 6:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", interrupted)
        assert run(command) == 130
    assert "interrupted at step 6" in capsys.readouterr().err
    assert run([*command, "--resume"]) == 0
    assert log(home / "stopped") == log(home / "whole")


def test_micro_batches_add_up_to_the_batch(home: Path) -> None:
    plain = [*LAYERSKIP, "--p-max", "0", "--steps", "5"]
    assert run([*plain, "--out", "one"]) == 0
    assert run([*plain, "--micro-batch", "1", "--out", "four"]) == 0
    for a, b in zip(log(home / "one"), log(home / "four"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def answers(home: Path) -> str:
    """A text of long answers and short ones, so that blocks have many or few places that count."""
    words = (home / "text.txt").read_text("utf-8").split()[:400]
    lines = [
        {"text": " ".join(words[i : i + 40]), "prompt_chars": 150 if i % 80 else 2}
        for i in range(0, 400, 40)
    ]
    (home / "answers.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines), "utf-8")
    return "answers.jsonl"


@pytest.mark.parametrize("what", [["layerskip", "--p-max", "0"], ["heads", "--layers", "2"]])
def test_a_token_of_an_answer_weighs_the_same_in_every_micro_batch(
    what: list[str], home: Path
) -> None:
    name, *options = what
    plain = ["train", name, "--model", "./model", "--text", answers(home), *SMALL, *options]
    plain += ["--steps", "5"]
    assert run([*plain, "--out", "one"]) == 0
    assert run([*plain, "--micro-batch", "1", "--out", "four"]) == 0
    for a, b in zip(log(home / "one"), log(home / "four"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def test_a_loss_that_turns_nan_stops_and_keeps_the_last_checkpoint(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.methods.layerskip import train as layerskip

    plain = layerskip.LayerSkipObjective.forward

    def poisoned(self: Any, rows: torch.Tensor, t: int, total: int) -> Any:
        found = plain(self, rows, t, total)
        return {**found, "loss": found["loss"] * float("nan")} if t == 6 else found

    monkeypatch.setattr(layerskip.LayerSkipObjective, "forward", poisoned)
    assert run([*LAYERSKIP, "--steps", "10", "--out", "nan"]) == 2
    err = capsys.readouterr().err
    assert "the loss turned nan at step 6" in err
    assert [path.name for path in (home / "nan" / "checkpoints").iterdir()] == ["step-00000004"]


def test_another_configuration_is_not_resumed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*LAYERSKIP, "--steps", "2", "--out", "run"]) == 0
    assert run([*LAYERSKIP, "--steps", "2", "--out", "run"]) == 2
    assert "already holds a training run" in capsys.readouterr().err
    assert run([*LAYERSKIP, "--steps", "3", "--out", "run", "--resume"]) == 2
    assert "config differs" in capsys.readouterr().err


def test_a_model_in_another_type_is_not_gone_on_with(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*training("medusa"), "--heads", "1", "--rank", "2", "--steps", "2", "--out", "run"]
    assert run(words) == 0
    capsys.readouterr()
    assert run([*words, "--dtype", "bfloat16", "--resume"]) == 2
    assert "dtype" in capsys.readouterr().err
    state = home / "run" / "training.json"
    facts = json.loads(state.read_text("utf-8"))
    del facts["dtype"]  # as earlier versions wrote it
    state.write_text(json.dumps(facts), "utf-8")
    assert run([*words, "--resume"]) == 0


def test_the_schedule_warms_up_and_comes_down() -> None:
    config = TrainConfig(steps=100, learning_rate=1.0, warmup_ratio=0.1)
    rates = [config.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates == [*sorted(rates[:10]), *sorted(rates[10:], reverse=True)]
    assert rates[-1] < 0.001
    constant = TrainConfig(steps=100, learning_rate=1.0, schedule="constant", warmup_ratio=0.0)
    assert {constant.rate(step) for step in range(100)} == {1.0}


def by_two(*words: str) -> None:
    """The same command in two processes that share the batch, started as users start them."""
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ppdbench"]
    done = subprocess.run(
        [sys.executable, "-m", *launch, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def forked_by_two(*words: str) -> None:
    """The same without the time that processes of their own take to begin."""
    AcceleratorState._reset_state(reset_partial_state=True)  # a run before was alone
    with meeting(2), ranks(words, Path("said"), 2) as started:
        codes = [rank.wait() for rank in started]
        assert codes == [0, 0], [rank.said() for rank in started]


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(home: Path) -> None:
    words = [*LAYERSKIP, "--p-max", "0", "--steps", "6", "--checkpoint-every", "3"]
    assert run([*words, "--out", "alone"]) == 0
    by_two(*words, "--out", "together")
    alone, together = log(home / "alone"), log(home / "together")
    assert len(together) == 6
    for a, b in zip(alone, together, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    assert (home / "together" / "model.safetensors").is_file()
    # What a run draws depends on how many share it.
    assert run([*words, "--out", "together", "--resume"]) == 2


@pytest.mark.slow
def test_two_processes_learn_from_answers_as_one_does(home: Path) -> None:
    words = ["train", "layerskip", "--model", "./model", "--text", answers(home), *SMALL]
    words += ["--p-max", "0", "--steps", "4"]
    assert run([*words, "--out", "alone"]) == 0
    forked_by_two(*words, "--out", "together")
    for a, b in zip(log(home / "alone"), log(home / "together"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


@pytest.mark.slow
def test_two_processes_drop_and_accumulate_alike_and_go_on(home: Path) -> None:
    words = [*LAYERSKIP, "--p-max", "0.5", "--steps", "6", "--micro-batch", "1", "--clip", "1"]
    for out in ("whole", "again"):
        forked_by_two(*words, "--out", out)
    shutil.rmtree(home / "again" / "checkpoints" / "step-00000006")
    (home / "again" / "model.safetensors").unlink()
    forked_by_two(*words, "--out", "again", "--resume")
    assert log(home / "again") == log(home / "whole")
    weights = [load_file(home / name / "model.safetensors") for name in ("whole", "again")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler has some of its own
def test_compiled_training_takes_the_same_steps(home: Path) -> None:
    losses = []
    for out, extra in (("plain", []), ("compiled", ["--compile"])):
        words = ["--model", "./model", "--text", "text.txt", "--out", out, "--steps", "4", *SMALL]
        assert run(["train", "layerskip", *words, "--rotation", "3", "--p-max", "0.5", *extra]) == 0
        lines = (home / out / "train.jsonl").read_text("utf-8").splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
