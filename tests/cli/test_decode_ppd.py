"""`decode --method ppd`, as it is typed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ppdbench.cli.main import run
from tests.processes import meeting, ranks

ROOT = Path(__file__).resolve().parents[2]
MODEL = "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=512,agree=0.9"
COMMON = ["--model", MODEL, "--offline", "--data", "builtin", "--task", "gsm8k", "--limit", "2"]
COMMON += ["--max-new-tokens", "12", "--format", "json"]
KEYS = {
    "p",
    "predicted_speedup",
    "gain_efficiency",
    "communication_ms_per_token",
    "communication_share",
    "units",
    "weight_bytes_per_unit",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def decoded(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run(["decode", "--method", "ppd", *COMMON, *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_inline_predicts_and_two_runs_agree_in_all_but_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = decoded(capsys, "--out", "a"), decoded(capsys, "--out", "b")
    assert first.keys() >= KEYS
    assert first["identical"] == 2
    assert first["speedup_one_unit"] is None
    assert 0 < first["p"] <= 1 < first["predicted_speedup"] <= 2
    for name in ("p", "predicted_speedup", "predicted_speedup_matches", "run_lengths"):
        assert first[name] == second[name]


@pytest.mark.slow
@pytest.mark.usefixtures("undoubted")
def test_split_measures_against_one_unit_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "form=split", "--timeline", "t.svg", "--out", "run", "--limit", "5"]
    found = decoded(capsys, *words)
    assert found["identical"] == 5
    assert found["units"] == 2
    assert found["speedup_one_unit"] > 0
    assert found["speedup_all_units"] > 0
    assert len(found["weight_bytes_per_unit"]) == 2
    assert Path("t.svg").read_text("utf-8").count("unit ") >= 2
    # Strict: the other unit computes in the same fixed shape.
    assert decoded(capsys, "--set", "form=split", "--strict")["identical"] == 2


@pytest.mark.slow
def test_torchrun_starts_the_units() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["-m", "ppdbench", *by_two("split")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (found["identical"], found["units"]) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["split", "replicated"])
def test_ranks_are_the_units(form: str) -> None:
    with meeting(2), ranks(by_two(form), Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [0, 0], started[0].said()
    found = json.loads(started[0].out.read_text())
    assert (found["identical"], found["units"]) == (2, 2)


def by_two(form: str) -> list[str]:
    """What two ranks run as units."""
    return ["decode", "--method", "ppd", "--set", f"form={form}", "--set", "k=1", *COMMON]


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_run() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["-m", "ppdbench", "decode", "--method", "ppd", "--set", "form=split"]
    command += ["--set", "k=1", "--set", "patience=3", *COMMON, "--max-new-tokens", "300"]
    command += ["--limit", "16", "--warmup", "0", "--out", "run"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    both: list[psutil.Process] = []
    try:
        until = time.monotonic() + 200
        while not list(Path("run").glob("samples*.jsonl")) and time.monotonic() < until:
            time.sleep(0.1)
        both = psutil.Process(started.pid).children()
        (second,) = (p for p in both if p.environ().get("RANK") == "1")
        second.send_signal(signal.SIGSTOP)
        psutil.wait_procs([rank for rank in both if rank != second], 120)
        second.kill()  # torchrun would wait half a minute for it to heed SIGTERM
        _, said = started.communicate(timeout=120)
    finally:
        for left in (*both, started):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
    assert started.returncode != 0
    assert "unit B" in said or "does not answer" in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--timeline", "t.gif"], "t.gif"),
        (["--set", "exit_after=1"], "use 2..3"),
        (["--set", "form=pipe"], "inline, split, replicated"),
        (["--set", "head=nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", "--method", "ppd", *COMMON, *more]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_the_run_says_which_head_was_read() -> None:
    words = ["decode", "--method", "ppd", "--set", "head=reference", "--data", "builtin"]
    words += ["--limit", "1", "--max-new-tokens", "4", "--threads", "1", "--warmup", "0"]
    assert run([*words, "--out", "run"]) == 0
    header = json.loads(Path("run/run.json").read_text("utf-8"))
    assert re.fullmatch("[0-9a-f]{16}", header["methods"]["ppd"]["loaded"]["head"])
    # A unit that reads candidates out with it has its weights besides the model's.
    (weights,) = header["facts"]["ppd"]["weight_bytes_per_unit"]
    assert weights > header["memory"]["weights"]


def test_other_methods_have_no_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decode", "--method", "greedy", "--timeline", "t.png", *COMMON]) == 2
    assert "--timeline is for --method ppd" in capsys.readouterr().err


def test_bench_puts_ppd_beside_other_methods(capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["--method", "greedy", "--method", "ppd:k=1", "--method", "ppd:k=3"]
    assert run(["bench", *methods, *COMMON]) == 0
    rows = {row["label"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["ppd:k=1"]["p"] <= rows["ppd:k=3"]["p"]
    assert "p" not in rows["greedy"]
    csv = [part if part != "json" else "csv" for part in COMMON]
    assert run(["bench", *methods, *csv]) == 0
    header, *lines = capsys.readouterr().out.strip().splitlines()
    assert "gain_efficiency" in header
    assert len(lines) == 3
