"""`make gpu-check`: every step of it on the CPU, and what it says where there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import (
    GPU,
    NO_GPU,
    CheckScale,
    CheckStep,
    GpuCheck,
    Words,
    check,
    in_a_process,
    main,
    papers,
    steps,
)
from ppdbench.cli.main import run
from tests.processes import meeting, ranks

TINY = CheckScale(
    model="synthetic:layers=4,hidden=32,heads=4,vocab=300,context=1024,agree=0.9",
    methods=("greedy", "layerskip", "draft-verify", "prompt-lookup", "lookahead", "ppd"),
    limit=1,
    tokens=4,
    rounds=1,
    large="synthetic:layers=5,hidden=64,heads=4,context=1024,agree=0.9",
    compile="off",
)


def here(step: CheckStep, words: Words, out: Path) -> int:
    """A step without the time that processes of their own take to begin, but for one of two."""
    if step.name == "probe-ranks":
        return in_a_process(step, words, out)
    result, talk = papers(step, out)
    if step.ranks > 1:
        torch.set_num_threads(1)
        with meeting(step.ranks), ranks(words, out / f"{step.name}-said", step.ranks) as started:
            codes = [rank.wait() for rank in started]
        result.write_text(started[0].out.read_text())
        talk.write_text("".join(rank.said() for rank in started))
        return max(codes)
    with (
        result.open("w") as said,
        talk.open("w") as log,
        redirect_stdout(said),
        redirect_stderr(log),
    ):
        return run(words)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCheck]:
    yield check("cpu", tmp_path_factory.mktemp("check"), TINY, runner=here)


@pytest.mark.slow
def test_every_step_ends_well_on_the_cpu(made: GpuCheck) -> None:
    wrong = {done.name: done.code for done in made.done if done.code or done.left_out}
    assert not wrong, {name: (made.out / f"{name}.log").read_text() for name in wrong}
    assert made.code == 0


@pytest.mark.slow
def test_what_it_writes_can_be_read(made: GpuCheck) -> None:
    content = json.loads((made.out / "gpu-check.json").read_text())
    assert content["ok"]
    named = [step["name"] for step in content["steps"]]
    runs = [name for name in named if (made.out / name / "run.json").exists()]
    assert len(runs) > 10
    assert "exact-bfloat16-strict" in runs
    figures = json.loads((made.out / "baseline-float32.json").read_text())
    assert figures["greedy_tokens_per_s"] > 0
    page = (made.out / "report.html").read_text()
    assert all(name in page for name in ("layerskip", "prompt-lookup"))


@pytest.mark.slow
def test_finished_steps_are_not_done_again(made: GpuCheck) -> None:
    step = next(step for step in steps("cpu", TINY, ()) if step.name == "exact-float32")
    before = (made.out / step.name / "samples.jsonl").read_bytes()
    again = GpuCheck(made.out, 1, here)
    assert again.carry_out(step).code == 0
    assert (made.out / step.name / "samples.jsonl").read_bytes() == before


def test_a_step_that_fails_fails_the_check(tmp_path: Path) -> None:
    codes = iter([0, 1])
    made = GpuCheck(tmp_path, 1, lambda step, words, out: next(codes))
    made.carry_out(CheckStep("good", ()))
    assert made.code == 0
    made.carry_out(CheckStep("bad", ()))
    assert made.code == 1


def test_steps_that_need_more_devices_are_left_out_and_named(tmp_path: Path) -> None:
    made = GpuCheck(tmp_path, 1, lambda step, words, out: 0)
    for step in steps("cuda", GPU, ("nf4",)):
        made.carry_out(step)
    left_out = {done.name for done in made.done if done.left_out == "1 of 2 devices"}
    assert left_out == {
        *("ppd-split-several", "ppd-split-ranks", "ppd-replicated-several"),
        *("ppd-replicated-ranks", "exact-spread", "probe-ranks"),
    }


def test_without_a_gpu_nothing_is_checked_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "check")]) == 0
    assert capsys.readouterr().out == f"{NO_GPU}\n"
    assert not (tmp_path / "check").exists()
