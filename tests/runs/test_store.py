"""Run folders: what is finished stays, what is torn is redone, nothing is mixed or lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.cli.main import run
from ppdbench.errors import ConfigError, DataError, Interrupted
from ppdbench.files.whole import write_whole
from ppdbench.runs.records import TIMES, Sample
from ppdbench.runs.samples import Stored, sample_path, sample_paths
from ppdbench.runs.shards import ALONE, Shard
from ppdbench.runs.store import SCHEMA_VERSION, StoredRun, begun_header, read_run
from tests import records
from tests.filled import RunFolder, sample_key

HEADER: dict[str, Any] = records.header(
    "decode",
    config={"limit": 3, "tasks": ("squad",)},
    data={"squad": {"sha256": "cd"}},
)
MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--data", "builtin", "--max-new-tokens", "8"]
PROBE = ["probe", *SMALL, "--limit", "12"]
DECODE = ["decode", *SMALL, "--limit", "12"]


def sample(number: int, **more: Any) -> dict[str, Any]:
    told = {"task": "squad", "example_id": str(number), "method": "jacobi", **more}
    return records.sample("decode", **told)


def written(folder: Path, count: int = 3) -> Path:
    """A run folder with `count` samples; the path of its sample lines."""
    with RunFolder(folder, HEADER, resume=False) as store:
        for number in range(count):
            store.append(sample(number))
    return folder / "samples.jsonl"


def ids(stored: StoredRun) -> list[str]:
    return [line.example_id for line in stored.samples]


# What is written is what is read


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", HEADER, resume=False) as store:
        for number in (2, 0, 1):
            store.append(sample(number, text='line\nbreak, "quote", é, \u2028'))
    stored = read_run(tmp_path / "run")
    assert ids(stored) == ["2", "0", "1"]
    assert {line.text for line in stored.samples} == {'line\nbreak, "quote", é, \u2028'}
    assert stored.torn is False
    assert stored.header.schema_version == SCHEMA_VERSION
    assert msgspec.to_builtins(stored.header.model) == HEADER["model"]


def test_each_sample_can_be_read_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with RunFolder(tmp_path, HEADER, resume=False) as store:
        for number in range(3):
            store.append(sample(number))
            assert len(read_run(tmp_path).samples) == number + 1


def test_a_nan_is_refused_instead_of_written(tmp_path: Path) -> None:
    with RunFolder(tmp_path, HEADER, resume=False) as store:
        with pytest.raises(ValueError, match="not JSON compliant"):
            store.append(sample(0, prefill_ms=float("nan")))
        store.append(sample(1))
    assert ids(read_run(tmp_path)) == ["1"]


def test_resume_hands_back_what_is_finished_and_appends_the_rest(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        assert sorted(store.done) == [sample_key(sample(0)), sample_key(sample(1))]
        store.append(sample(2))
    assert ids(read_run(tmp_path)) == ["0", "1", "2"]


def test_samples_of_another_task_method_or_target_are_others() -> None:
    keys = {
        sample_key(sample(0, **change))
        for change in ({}, {"target": "top-p"}, {"task": "xsum"}, {"method": "greedy"})
    }
    assert len(keys) == 4


# Damage

TAILS = {
    "half a line": b'{"task": "squad", "exam',
    "no newline": json.dumps(sample(9)).encode(),
    "zeros": b"\0" * 40,
    "garbage": b"\xff\xfe\x00\x80garbage",
    "half a character": '{"text": "é'.encode()[:-1],
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_torn_last_line_is_reported_and_left_out(tmp_path: Path, tail: bytes) -> None:
    lines = written(tmp_path)
    lines.write_bytes(lines.read_bytes() + tail)
    stored = read_run(tmp_path)
    assert stored.torn is True
    assert ids(stored) == ["0", "1", "2"]


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_resume_cuts_a_torn_last_line_and_goes_on_behind_the_sound_ones(
    tmp_path: Path, tail: bytes
) -> None:
    lines = written(tmp_path)
    sound = lines.read_bytes()
    lines.write_bytes(sound + tail)
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        assert (len(store.done), store.cut_off) == (3, [lines])
        assert lines.read_bytes() == sound
        store.append(sample(3))
    assert ids(read_run(tmp_path)) == ["0", "1", "2", "3"]
    assert read_run(tmp_path).torn is False


@pytest.mark.parametrize("line", [b"", b"foo", b"17", b"{}", b"\xff\xfe"], ids=repr)
def test_a_last_line_that_has_its_end_is_damaged_like_any_other(
    tmp_path: Path, line: bytes
) -> None:
    lines = written(tmp_path)
    lines.write_bytes(lines.read_bytes() + line + b"\n")
    before = lines.read_bytes()
    with pytest.raises(DataError, match=r"samples\.jsonl line 4 is damaged"):
        read_run(tmp_path)
    with pytest.raises(DataError, match=r"samples\.jsonl line 4 is damaged"):
        RunFolder(tmp_path, HEADER, resume=True)
    assert lines.read_bytes() == before


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    lines = written(tmp_path)
    whole = lines.read_bytes()
    lines.write_bytes(whole[:-9])
    stored = Stored(tmp_path, read_run(tmp_path).header)
    for written_by_now, count, torn in ((whole[:-9], 2, True), (whole, 3, False)):
        lines.write_bytes(written_by_now)
        stored.look()
        assert (len(stored), stored.torn) == (count, torn)


def test_only_what_was_done_again_is_said_to_be(tmp_path: Path) -> None:
    lines = written(tmp_path)
    lines.write_bytes(lines.read_bytes() + b"foo")
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        assert (store.redone, store.cut_off) == (False, [lines])
    lines.write_bytes(lines.read_bytes()[:-9])
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        store.append(sample(2))
        assert (store.redone, store.cut_off) == (True, [])
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        store.append(sample(3))
        assert (store.redone, store.cut_off) == (False, [])


def test_a_job_does_not_do_again_what_another_has_torn(tmp_path: Path) -> None:
    first, second = Shard.job("1/2"), Shard.job("2/2")
    with RunFolder(tmp_path, HEADER, resume=True, shard=first) as store:
        store.append(sample(0))
    torn = sample_path(tmp_path, first)
    torn.write_bytes(torn.read_bytes()[:-9])
    with RunFolder(tmp_path, HEADER, resume=True, shard=second) as store:
        store.append(sample(1))
        assert (store.redone, store.cut_off) == (False, [torn])
    torn.write_bytes(torn.read_bytes() + b"foo")
    own = sample_path(tmp_path, second)
    own.write_bytes(own.read_bytes()[:-9])
    with RunFolder(tmp_path, HEADER, resume=True, shard=second) as store:
        store.append(sample(1))
        assert (store.redone, store.cut_off) == (True, [torn])


def test_lines_that_end_as_other_systems_end_them_are_the_same_lines(tmp_path: Path) -> None:
    lines = written(tmp_path)
    before = read_run(tmp_path)
    lines.write_bytes(lines.read_bytes().replace(b"\n", b"\r\n"))
    after = read_run(tmp_path)
    assert list(after.samples) == list(before.samples)
    assert after.torn is False


@pytest.mark.parametrize(
    "other", [{"method": "medusa"}, {"task": "xsum"}], ids=["of another method", "of another task"]
)
def test_a_sample_of_another_run_is_refused_with_its_line(
    tmp_path: Path, other: dict[str, str]
) -> None:
    header = records.header("decode", data={"squad": {}}, methods={"jacobi": {}})
    both = {"data": {"xsum": {}, "squad": {}}, "methods": {"jacobi": {}, "medusa": {}}}
    others = records.header("decode", **both)
    folder, lines = tmp_path / "run", "samples.jsonl"
    with RunFolder(folder, header, resume=False) as store:
        store.append(sample(1))
    with RunFolder(tmp_path / "other", others, resume=False) as store:
        store.append(sample(7, **other))
    with (folder / lines).open("ab") as file:
        file.write((tmp_path / "other" / lines).read_bytes())
    ((what, name),) = other.items()
    said = rf"samples\.jsonl line 2 is a sample of another run: run\.json has no {what} '{name}'"
    with pytest.raises(DataError, match=said):
        read_run(folder)
    with pytest.raises(DataError, match=said):
        RunFolder(folder, header, resume=True)


@pytest.mark.parametrize(
    ("listed", "target"), [("greedy", "top-p"), ("top-p", "greedy"), ("top-p", None)], ids=repr
)
@pytest.mark.parametrize("hold", [None, 0], ids=["parsed", "by its head"])
def test_a_probed_sample_of_a_target_that_was_not_asked_for_is_refused_with_its_line(
    tmp_path: Path, listed: str, target: str | None, hold: int | None
) -> None:
    asked = {"data": {"squad": {}}, "config": {"targets": [{"kind": listed}]}}
    told = {"task": "squad", "example_id": "1", "method": "probe"}
    own, other = {**told, "target": listed}, {**told, "target": target}
    whole = records.write_run(tmp_path / "whole", "probe", [own], **asked)
    assert len(read_run(whole).samples) == 1
    mixed = records.write_run(tmp_path / "mixed", "probe", [own, other], **asked)
    name = target or "greedy"
    said = rf"line 2 is a sample of another run: run\.json has no target '{name}'; restore"
    with pytest.raises(DataError, match=said):
        Stored(mixed, read_run(whole).header, hold=hold).look()
    with pytest.raises(DataError, match=said):
        RunFolder(mixed, read_run(whole).header, resume=True)


def test_a_probed_sample_without_a_target_is_one_of_greedy(tmp_path: Path) -> None:
    asked = {"data": {"squad": {}}, "config": {"targets": [{"kind": "greedy"}]}}
    told = [{"task": "squad", "example_id": "1", "method": "probe", "target": None}]
    assert len(read_run(records.write_run(tmp_path, "probe", told, **asked)).samples) == 1


@pytest.mark.parametrize("damage", [b"{", b"{}", b"\xff\xfe", b"[1, 2]", b""], ids=repr)
def test_damage_in_the_middle_is_refused_with_its_line(tmp_path: Path, damage: bytes) -> None:
    lines = written(tmp_path)
    first, _, last = lines.read_bytes().splitlines(keepends=True)
    lines.write_bytes(first + damage + b"\n" + last)
    with pytest.raises(DataError, match=r"samples\.jsonl line 2 is damaged"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="line 2"):
        RunFolder(tmp_path, HEADER, resume=True)
    assert len(lines.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schema_version"'], ids=repr)
def test_a_damaged_header_is_refused_by_name(tmp_path: Path, text: str) -> None:
    written(tmp_path)
    (tmp_path / "run.json").write_text(text)
    for resume in (False, True):
        with pytest.raises((DataError, ConfigError)) as caught:
            RunFolder(tmp_path, HEADER, resume=resume)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataError, match=r"run\.json is damaged"):
        read_run(tmp_path)


def test_a_header_in_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(DataError, match=r"run\.json is damaged"):
        read_run(tmp_path)


def test_another_schema_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    written(tmp_path)
    header = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**header, "schema_version": 99}))
    with pytest.raises(DataError, match=rf"version 99.*reads {SCHEMA_VERSION}"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="version 99"):
        RunFolder(tmp_path, HEADER, resume=True)


def test_a_folder_without_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no run folder: it has no run\.json"):
        read_run(tmp_path)


def test_sample_lines_whose_header_is_lost_are_not_overwritten(tmp_path: Path) -> None:
    lines = written(tmp_path)
    before = lines.read_bytes()
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"samples\.jsonl"):
        RunFolder(tmp_path, HEADER, resume=False)
    assert lines.read_bytes() == before


# What may share a folder


def test_an_existing_run_is_refused_without_resume(tmp_path: Path) -> None:
    lines = written(tmp_path)
    before = lines.read_bytes()
    with pytest.raises(ConfigError, match="already holds a run; continue it with --resume"):
        RunFolder(tmp_path, HEADER, resume=False)
    assert lines.read_bytes() == before


def test_resume_without_a_run_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to resume"):
        RunFolder(tmp_path / "run", HEADER, resume=True)
    assert not (tmp_path / "run").exists()


def test_another_configuration_is_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    written(tmp_path)
    other = {
        **HEADER,
        "config": {**HEADER["config"], "limit": 4, "shots": 1},
        "model": {**HEADER["model"], "weight_hash": "changed"},
    }
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path, other, resume=True)
    for name in ("config.limit", "config.shots", "model.weight_hash"):
        assert name in str(caught.value)
    for name in ("config.seed", "config.tasks", "model.name", "data"):
        assert name not in str(caught.value)


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match="a decode run is stored there, and this is a bench run"):
        RunFolder(tmp_path, {**HEADER, "kind": "bench"}, resume=True)


@pytest.mark.parametrize("other", ["2/3", "1/3", "1/1"])
@pytest.mark.parametrize("resume", [False, True])
def test_jobs_of_one_folder_share_it_among_as_many(
    tmp_path: Path, resume: bool, other: str
) -> None:
    def enter(shard: Shard, *, resume: bool) -> None:
        with RunFolder(tmp_path / "run", HEADER, resume=resume, shard=shard) as store:
            assert store.header.shards == 2

    enter(Shard.job("1/2"), resume=False)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"run holds shards of 2, so {other} .* I/2"):
            enter(Shard.job(other), resume=resume)
        assert sample_paths(tmp_path / "run")[-1].name == "samples-0.jsonl"
        enter(ALONE, resume=True)  # whoever was there in between
    enter(Shard.job("2/2"), resume=False)
    assert sample_paths(tmp_path / "run")[-1].name == "samples-1.jsonl"


def test_the_first_job_in_a_run_that_others_began_says_how_many_share_it(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_run(tmp_path).header.shards is None
    with RunFolder(tmp_path, HEADER, resume=True, shard=Shard.job("1/2")):
        assert read_run(tmp_path).header.shards == 2
    with pytest.raises(ConfigError, match="holds shards of 2"):
        RunFolder(tmp_path, HEADER, resume=True, shard=Shard.job("3/3"))


def test_time_and_machine_may_differ_between_the_parts_of_a_run(tmp_path: Path) -> None:
    written(tmp_path)
    later = {**HEADER, "started": "later", "command": ["other"]}
    later["environment"] = {**HEADER["environment"], "python": "3.12"}
    with RunFolder(tmp_path, later, resume=True) as store:
        assert len(store.done) == 3


@pytest.mark.parametrize(
    ("finished", "says"),
    [
        (0, "run was begun, no sample is finished"),
        (1, "1 finished sample is kept in {run}"),
        (2, "2 finished samples are kept in {run}"),
    ],
)
def test_an_interrupt_says_what_is_kept(finished: int, says: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with (
        pytest.raises(Interrupted, match=r"; continue with --out \S+ --resume$") as told,
        RunFolder(folder, HEADER, resume=False) as store,
    ):
        for number in range(finished):
            store.append(sample(number))
        raise KeyboardInterrupt
    assert says.format(run=folder) in str(told.value)
    assert str(told.value).endswith(f" --out {folder} --resume")


def test_a_run_keeps_what_it_said_of_itself_when_it_began(tmp_path: Path) -> None:
    with RunFolder(tmp_path, HEADER, resume=False) as store:
        assert store.header.started == HEADER["started"]
    later = {**HEADER, "started": "later", "bandwidth_bytes_per_s": 2.0}
    with RunFolder(tmp_path, later, resume=True) as store:
        assert store.header == read_run(tmp_path).header
        assert store.header.started == HEADER["started"]
        store.amend(bandwidth_bytes_per_s=3.0)
        assert store.header == read_run(tmp_path).header


# Places that cannot be written


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(ConfigError, match=r"cannot write to .*taken"):
            RunFolder(path, HEADER, resume=False)
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="cannot write to"):
            RunFolder(tmp_path / "run", HEADER, resume=False)
    finally:
        tmp_path.chmod(0o700)


def _lasting(sample: Sample) -> dict[str, Any]:
    return {k: v for k, v in msgspec.to_builtins(sample).items() if k not in TIMES}


def facts(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """All that a run says apart from how long it took; refuses samples that are there twice."""
    samples = read_run(folder).samples
    by_key = {sample_key(s): _lasting(s) for s in samples}
    assert len(by_key) == (folder / "samples.jsonl").read_bytes().count(b"\n")
    return by_key


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
from ppdbench.cli.main import main
main()
"""

# Time enough between two samples to be interrupted there.
SLOW = """
import signal, time
from ppdbench.runs.store import RunFolder
signal.signal(signal.SIGINT, signal.default_int_handler)
append = RunFolder.append
def slow(self, sample):
    append(self, sample)
    time.sleep(0.2)
RunFolder.append = slow
from ppdbench.cli.main import main
main()
"""


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_samples(worker: subprocess.Popen[str], folder: Path, count: int) -> None:
    lines = folder / "samples.jsonl"
    while worker.poll() is None:
        if lines.exists() and lines.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    pytest.fail(f"ended before {count} samples were written: {worker.communicate()[1]}")


def assert_resumes_to_the_whole(command: list[str], folder: Path) -> None:
    whole = folder.with_name("whole")
    assert run([*command, "--out", str(folder), "--resume"]) == 0
    assert run([*command, "--out", str(whole)]) == 0
    assert facts(folder) == facts(whole)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_line_and_costs_only_the_sample_in_the_works(
    tmp_path: Path,
) -> None:
    full = tmp_path / "full"
    worker = process(LIMITED, *DECODE, "--out", str(full))
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "disk full" in err
    assert "--resume" in err

    stored = read_run(full)
    assert 0 < len(stored.samples) < 12
    assert stored.torn is False

    assert_resumes_to_the_whole(DECODE, full)


@pytest.mark.slow
def test_a_killed_run_resumes_to_what_an_uninterrupted_one_gives(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    targets = ["--target", "greedy", "--target", "top-p"]
    worker = process(SLOW, *PROBE, *targets, "--out", str(killed))
    wait_for_samples(worker, killed, random.randint(1, 5))
    time.sleep(random.uniform(0, 0.2))
    worker.kill()
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    assert 0 < len(read_run(killed).samples) < 24

    assert_resumes_to_the_whole([*PROBE, *targets], killed)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    worker = process(SLOW, *PROBE, "--out", str(stopped))
    wait_for_samples(worker, stopped, 2)
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=60)
    assert worker.returncode == 130
    assert out == ""
    assert len(err.split("\n")) == 2
    assert "interrupted" in err
    assert "--resume" in err
    assert str(stopped) in err

    assert 2 <= len(read_run(stopped).samples) < 12
    assert_resumes_to_the_whole(PROBE, stopped)


def test_a_torn_line_is_mentioned_when_its_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["probe", *SMALL, "--limit", "2", "--out", str(tmp_path)]
    assert run(small) == 0
    lines = tmp_path / "samples.jsonl"
    lines.write_bytes(lines.read_bytes()[:-20])
    capsys.readouterr()
    assert run([*small, "--resume"]) == 0
    said = capsys.readouterr().err
    assert "a last line of samples was incomplete; that example was done again" in said
    assert said.count("incomplete") == 1
    assert len(facts(tmp_path)) == 2


def test_a_torn_line_behind_all_that_was_wanted_is_said_once_to_be_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["probe", *SMALL, "--limit", "2", "--out", str(tmp_path)]
    assert run(small) == 0
    lines = tmp_path / "samples.jsonl"
    sound = lines.read_bytes()
    lines.write_bytes(sound + sound[:50])
    capsys.readouterr()
    assert run([*small, "--resume"]) == 0
    said = capsys.readouterr().err
    assert f"note: the last line of {lines} was incomplete and was cut off" in said
    assert said.count("incomplete") == 1
    assert lines.read_bytes() == sound
    assert run([*small, "--resume"]) == 0
    assert "incomplete" not in capsys.readouterr().err


# What the first of several ranks decided

FOLLOWER = Shard(index=1, count=2, launch="one")


def test_ranks_wait_for_what_the_first_decided(tmp_path: Path) -> None:
    captured = {"mode": "on", "rows": [1], "seconds": 1.0}
    told = records.header("decode", compilation=captured)
    later = threading.Timer(0.3, write_whole, (tmp_path / "run.json", json.dumps(told)))
    later.start()
    header = begun_header(tmp_path, FOLLOWER)
    later.join()
    assert header is not None
    assert header.compilation.rows == [1]


def test_ranks_do_not_wait_for_ever_and_others_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun_header(tmp_path) is None
    monkeypatch.setattr("ppdbench.runs.store.PATIENCE_S", 0.0)
    with pytest.raises(DataError, match="the first rank did not begin"):
        begun_header(tmp_path, FOLLOWER)
