"""Several processes on one run: together they do what one does, and survive each other."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from ppdbench.cli.main import run
from ppdbench.runs.records import TIMES
from ppdbench.runs.samples import sample_key, sample_paths
from ppdbench.runs.store import RunFolder, read_run
from tests.processes import ranks, slowed, wait_for

ROOT = Path(__file__).resolve().parents[2]
MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
COMMON = ["--model", MODEL, "--data", "builtin", "--task", "gsm8k", "--task", "squad"]
COMMON += ["--limit", "6", "--max-new-tokens", "6"]
PROBE = ["probe", *COMMON, "--target", "greedy", "--target", "top-p", "--format", "csv"]
BENCH = ["bench", *COMMON, "--method", "greedy", "--method", "prompt-lookup", "--warmup", "0"]
SWEEP = ["sweep", *COMMON, "--method", "prompt-lookup", "--grid", "max_draft=1,2,3,4"]
SWEEP += ["--search", "halving", "--warmup", "0"]
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)


def lines_in(folder: str | Path) -> int:
    """How many samples are written by now."""
    return sum(path.read_bytes().count(b"\n") for path in sample_paths(Path(folder)))


def facts(folder: str | Path) -> list[dict[str, Any]]:
    """All that a run says apart from how long it took; refuses samples that are there twice."""
    stored = read_run(folder).samples
    assert lines_in(folder) == len({sample_key(sample) for sample in stored})
    plain: list[dict[str, Any]] = msgspec.to_builtins(list(stored))
    return [{k: v for k, v in s.items() if k not in {*TIMES, "processes"}} for s in plain]


Whole = Callable[[list[str]], tuple[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What one process prints of a run, and the facts of it.

    It comes before ranks are forked: what it imports they need not import again.
    """
    known: dict[tuple[str, ...], tuple[str, list[dict[str, Any]]]] = {}

    def found(words: list[str]) -> tuple[str, list[dict[str, Any]]]:
        if tuple(words) not in known:
            folder = tmp_path_factory.mktemp("whole") / "run"
            with redirect_stdout(io.StringIO()) as out:
                assert run([*words, "--out", str(folder)]) == 0
            known[tuple(words)] = out.getvalue(), facts(folder)
        return known[tuple(words)]

    return found


# Ranks


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_find_what_one_process_finds_and_the_first_prints_it(
    count: int, whole: Whole
) -> None:
    printed, found = whole(PROBE)
    with ranks([*PROBE, "--out", "run"], Path("said"), count) as started:
        assert [rank.wait() for rank in started] == [0] * count
        for follower in started[1:]:
            assert follower.out.read_text() == follower.said() == ""
    names = [path.name for path in sample_paths(Path("run"))]
    assert names == [f"samples-{n}.jsonl" for n in range(count)]
    assert started[0].out.read_text() == printed
    assert facts("run") == found


def test_outputs_of_ranks_are_those_of_one_process_and_times_say_how_many_ran(
    whole: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, found = whole(BENCH)
    assert "processes" not in printed
    with ranks([*BENCH, "--out", "run"], Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [0, 0]
    assert facts("run") == found
    assert {sample.processes for sample in read_run("run").samples} == {2}
    assert "2 processes" in started[0].out.read_text()
    assert run([*BENCH, "--out", "run", "--resume", "--format", "json"]) == 0
    assert {row["processes"] for row in json.loads(capsys.readouterr().out)} == {2}


def test_ranks_decode_their_parts_in_batches(whole: Whole) -> None:
    words = [*BENCH, "--batch", "1,3"]
    _, found = whole(words)
    with ranks([*words, "--out", "run"], Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [0, 0]
    assert facts("run") == found
    assert {sample.method for sample in read_run("run").samples} == {
        *("greedy", "prompt-lookup"),
        *("greedy (batch 3)", "prompt-lookup (batch 3)"),
    }
    with ranks([*words[:-1], "4", "--out", "four"], Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [2, 2]
    assert "of which one of 2 processes gets 3; use 3 or less" in started[0].said()


def test_ranks_of_a_search_wait_for_each_other_before_they_drop_cells(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppdbench.bench.sweep._speeds", by_label)
    _, found = whole(SWEEP)
    with ranks([*SWEEP, "--out", "run"], Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [0, 0]
    assert facts("run") == found


def by_label(labels: list[str], items: Any, folder: RunFolder) -> dict[str, float]:
    """Speeds that do not change from run to run, once all results are there."""
    for label in labels:
        for item in items:
            assert (item.task.name, item.example.id, label, None) in folder.done
    return {label: float(at) for at, label in enumerate(labels)}


def test_a_killed_rank_costs_only_its_own_work_and_any_number_of_ranks_goes_on(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed, found = whole(PROBE)
    own = Path("run/samples-1.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", slowed(lambda: 0.1))
        with ranks([*PROBE, "--out", "run"], Path("said"), 2) as started:
            wait_for(lambda: own.exists() and own.read_bytes().count(b"\n") >= 2)
            started[1].kill()
            assert started[0].wait() == 3
    kept = facts("run")
    assert 12 + 2 <= len(kept) < 24
    assert f"{24 - len(kept)} samples missing, a process ended early" in started[0].said()
    assert started[0].out.read_text().startswith("task,")

    with ranks([*PROBE, "--out", "run", "--resume"], Path("again"), 3) as again:
        assert [rank.wait() for rank in again] == [0, 0, 0]
    assert again[0].out.read_text() == printed
    assert facts("run") == found


def test_a_rank_told_to_end_keeps_its_work_and_only_the_first_says_so(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(PROBE)
    monkeypatch.setattr(RunFolder, "append", slowed(lambda: 0.1))
    with ranks([*PROBE, "--out", "run"], Path("said"), 2) as started:
        wait_for(lambda: len(sample_paths(Path("run"))) == 2 and lines_in("run") > 3)
        for rank in started:
            rank.kill(signal.SIGTERM)
        assert [rank.wait() for rank in started] == [130, 130]
    assert "interrupted; all finished samples are kept in run" in started[0].said()
    assert started[1].said() == ""
    assert 3 < len(facts("run")) < 24


def test_while_ranks_write_a_second_run_is_refused(
    whole: Whole, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(PROBE)
    monkeypatch.setattr(RunFolder, "append", slowed(lambda: 0.6))
    with ranks([*PROBE, "--out", "run"], Path("said"), 2) as started:
        wait_for(lambda: len(sample_paths(Path("run"))) == 2)
        for more in ([], ["--shard", "3/3"], ["--salvage"]):
            assert run([*PROBE, "--out", "run", "--resume", *more]) == 2
            assert "run is being written by another process" in capsys.readouterr().err
        with ranks([*PROBE, "--out", "run", "--resume"], Path("second"), 3) as second:
            assert second[0].wait() == 2
            assert "being written by another process" in second[0].said()
        assert [rank.wait() for rank in started] == [0, 0]


def test_a_bad_option_is_told_by_the_rank_that_met_it() -> None:
    with ranks([*PROBE, "--layers", "9", "--out", "run"], Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [2, 2]
    assert started[0].said().startswith("ppdbench: layer 9")
    assert started[1].said().startswith("ppdbench (rank 1): layer 9")
    assert not Path("run").exists()


def test_ranks_without_out_come_to_the_same_folder() -> None:
    with ranks(PROBE, Path("said"), 2) as started:
        assert [rank.wait() for rank in started] == [0, 0]
    (folder,) = Path("results").iterdir()
    assert len(facts(folder)) == 24


# Kills

ROUNDS = 20


@pytest.mark.slow
def test_twenty_kills_lose_no_finished_example_and_repeat_none(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = whole(BENCH)
    draw = random.Random(os.urandom(8))
    began = time.monotonic()
    assert run([*BENCH, "--out", "timed"]) == 0
    took = time.monotonic() - began  # so that some kills come before the first sample, some later
    finished: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", slowed(lambda: draw.uniform(0, 0.15)))
        for number in range(ROUNDS):
            words = [*BENCH, "--out", "run"]
            words += ["--resume"] if Path("run/run.json").exists() else []
            with ranks(words, Path(f"said-{number}"), draw.choice([1, 2, 3])) as started:
                started[0].process.join(draw.uniform(0, 2 * took))
                draw.choice(started).kill()
            if Path("run/run.json").exists():
                now = facts("run")
                assert all(sample in now for sample in finished)
                finished = now
    assert finished
    assert run([*BENCH, "--out", "run", "--resume"]) == 0
    assert facts("run") == expected


# Jobs


def test_jobs_share_a_folder_in_any_order_and_the_last_prints_everything(
    whole: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, found = whole(PROBE)
    for shard, missing in (("3/3", 16), ("1/3", 8)):
        assert run([*PROBE, "--out", "run", "--shard", shard]) == 0
        assert f"{missing} samples of other shards are not there yet" in capsys.readouterr().err
    assert run([*PROBE, "--out", "run", "--shard", "2/3"]) == 0
    said = capsys.readouterr()
    assert "not there" not in said.err
    assert said.out == printed
    assert facts("run") == found
    assert {sample.processes for sample in read_run("run").samples} == {None}


def test_a_job_goes_on_where_it_was_and_is_not_begun_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = [*PROBE, "--out", "run", "--shard", "2/3"]
    # The same words serve the first start and every later one.
    assert run([*job, "--resume"]) == 0
    path = Path("run/samples-1.jsonl")
    before = path.read_bytes()
    path.write_bytes(before[: len(before) // 2])
    assert run([*job, "--resume"]) == 0
    assert len(facts("run")) == 8
    capsys.readouterr()
    assert run(job) == 2
    assert "already holds shard 2/3 of a run; continue it with --resume" in capsys.readouterr().err


def test_jobs_may_run_at_the_same_time(whole: Whole) -> None:
    _, found = whole(PROBE)
    words = [*PROBE, "--out", "run", "--shard"]
    with ranks([*words, "1/2"], Path("one")) as one, ranks([*words, "2/2"], Path("two")) as two:
        assert [one[0].wait(), two[0].wait()] == [0, 0]
    assert facts("run") == found


def test_a_job_of_another_configuration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROBE, "--out", "run", "--shard", "1/2"]) == 0
    assert run([*PROBE, "--seed", "1", "--out", "run", "--shard", "2/2"]) == 2
    assert "config.seed (0 there, 1 here) differs" in capsys.readouterr().err


def test_a_job_of_another_number_of_jobs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROBE, "--out", "run", "--shard", "1/2"]) == 0
    for more in ([], ["--resume"]):
        capsys.readouterr()
        assert run([*PROBE, "--out", "run", "--shard", "2/3", *more]) == 2
        assert "run holds shards of 2, so 2/3 " in capsys.readouterr().err
    assert run([*PROBE, "--out", "run", "--shard", "2/2"]) == 0
    assert len(facts("run")) == 24


def test_an_example_of_another_job_is_shown_when_it_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["probe", *COMMON, "--show-example", "2", "--out", "run", "--shard"]
    shown = []
    for shard in ("1/2", "2/2"):
        assert run([*words, shard]) == 0
        shown.append("example 2 is not there yet" not in capsys.readouterr().err)
    assert shown == [False, True]


def test_a_job_without_examples_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["decode", "--model", MODEL, "--data", "builtin", "--limit", "1", "--out", "run"]
    codes = [run([*words, "--max-new-tokens", "4", "--shard", f"{n}/3"]) for n in (1, 2, 3)]
    assert codes == [0, 0, 0]
    assert len(facts("run")) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--shard", "4/3", "--out", "run"], "--shard '4/3': use I/N"),
        (["--shard", "half", "--out", "run"], "--shard 'half': use I/N"),
        (["--shard", "3/2"], "--shard '3/2': use I/N"),
        (["--shard", "1/2"], "--shard needs --out"),
    ],
)
def test_bad_shards_are_one_line(
    more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*PROBE, *more]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_ranks_are_not_jobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run([*PROBE, "--out", "run", "--shard", "1/2"]) == 2
    assert "torchrun" in capsys.readouterr().err


# torchrun itself


@contextmanager
def torchrun(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Two ranks, started as users start them; both are at work."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch = subprocess.Popen(
        [*command, "-m", "ppdbench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with launch:
        try:
            wait_for(lambda: len(sample_paths(Path("run"))) == 2 and lines_in("run") > 3, 200)
            yield launch
        finally:
            launch.terminate()


def at_work(launch: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks of a launch, in their order."""
    found = psutil.Process(launch.pid).children(recursive=True)
    return sorted(found, key=lambda process: process.environ()["RANK"])


# So long that no rank is done before it is told to end, however late that is.
LONG = [*PROBE, "--limit", "16", "--max-new-tokens", "160"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["success", "a killed rank", "Ctrl-C"])
def test_torchrun_leaves_nobody_behind_and_what_is_finished_stays(
    how: str, whole: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, found = whole(LONG)
    with torchrun(*LONG, "--out", "run") as launch:
        started = at_work(launch)
        assert len(started) == 2
        if how == "Ctrl-C":
            launch.send_signal(signal.SIGINT)
        elif how == "a killed rank":
            started[1].kill()
        out, err = launch.communicate(timeout=200)
    assert not any(process.is_running() for process in started)
    if how == "success":
        assert (launch.returncode, out) == (0, printed), err
    else:
        assert launch.returncode != 0
        assert out == ""
        assert "interrupted; all finished samples are kept in run" in err
        assert 3 < len(facts("run")) < 64
        assert run([*LONG, "--out", "run", "--resume"]) == 0
        assert capsys.readouterr().out == printed
    assert facts("run") == found
