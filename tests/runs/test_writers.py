"""Writers of a run folder: one at a time, seen from anywhere, and gone with their process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.runs import writers
from ppdbench.runs.samples import sample_path
from ppdbench.runs.shards import Shard
from ppdbench.runs.writers import (
    LOCK,
    Companions,
    LockContent,
    claim_turn,
    is_written,
    lock_run,
    take,
)
from tests.filled import RunFolder
from tests.runs.test_store import HEADER, sample, written


def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path, HEADER, resume=False) as store,
        pytest.raises(ConfigError, match="being written by another process"),
    ):
        store.append(sample(0))
        RunFolder(tmp_path, HEADER, resume=True)
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        assert len(store.done) == 1


def test_a_refused_run_lets_go_of_the_folder(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match="already holds"):
        RunFolder(tmp_path, HEADER, resume=False)
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        assert len(store.done) == 3


HOLD = """
import json, sys
from pathlib import Path
from ppdbench.runs.store import RunFolder, as_header
with RunFolder(Path(sys.argv[1]), as_header(json.loads(sys.argv[2])), resume=False):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_writer_in_another_process_is_seen_and_its_death_frees_the_folder(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), json.dumps(HEADER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(ConfigError, match="another process"):
            RunFolder(tmp_path, HEADER, resume=True)
        holder.kill()
    with RunFolder(tmp_path, HEADER, resume=True) as store:
        assert store.done == {}


def test_a_file_is_held_as_long_as_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert not is_written(path)  # nothing there
    path.touch()
    assert not is_written(path)
    with path.open("ab") as file:
        assert take(file)
        assert is_written(path)
    assert not is_written(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"group": "a"}', '{"group": "a", "met": {"one": 1}}', "null"]
)
def test_a_lock_that_holds_nothing_sensible_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text, "utf-8")
    with lock_run(tmp_path) as content:
        assert content == LockContent()


def test_changes_of_the_lock_are_written_and_nothing_is_left_behind_them(tmp_path: Path) -> None:
    with lock_run(tmp_path) as content:
        content.group, content.met = "a long name of a group", {0: 3, 1: 2}
    with lock_run(tmp_path) as content:
        assert (content.group, content.met) == ("a long name of a group", {0: 3, 1: 2})
        content.group = "b"
    assert json.loads((tmp_path / LOCK).read_text("utf-8")) == {
        "group": "b",
        "met": {"0": 3, "1": 2},
    }


def test_a_lock_that_is_never_let_go_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "PATIENCE_S", 0.0)
    with (
        lock_run(tmp_path),
        pytest.raises(ConfigError, match="being written by another process"),
        lock_run(tmp_path),
    ):
        pytest.fail("two came in")


def rank(index: int, launch: str = "x") -> Shard:
    return Shard(index=index, count=2, launch=launch)


@contextmanager
def at_work(folder: Path, shard: Shard) -> Iterator[None]:
    """Somebody holds the samples of a shard."""
    with sample_path(folder, shard).open("ab") as file:
        assert take(file)
        yield


def test_ranks_come_in_behind_the_first_of_their_launch_and_strangers_do_not(
    tmp_path: Path,
) -> None:
    content = LockContent("old", {0: 7, 1: 7})
    assert not claim_turn(tmp_path, rank(1), content)  # the first is not there yet
    assert claim_turn(tmp_path, rank(0), content)
    assert (content.group, content.met) == (rank(0).group, {0: 0})
    with at_work(tmp_path, rank(0)):
        assert claim_turn(tmp_path, rank(1), content)
        assert content.met == {0: 0, 1: 0}
        for other in (rank(0), rank(1, "y"), Shard()):
            with pytest.raises(ConfigError, match="being written by another process"):
                claim_turn(tmp_path, other, content)


def test_companions_count_until_they_end_and_who_never_came_until_patience_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Companions(tmp_path, rank(0))
    assert others.at_work(LockContent("x", {0: 0})) == [1]  # it may yet come
    came = LockContent("x", {0: 0, 1: 0})
    with at_work(tmp_path, rank(1)):
        assert others.at_work(came) == [1]
    assert others.at_work(came) == []
    monkeypatch.setattr(writers, "PATIENCE_S", -1.0)
    assert Companions(tmp_path, rank(0)).at_work(LockContent("x", {0: 0})) == []


def test_who_waits_for_a_rank_that_ended_is_told_so(tmp_path: Path) -> None:
    with lock_run(tmp_path) as content:
        content.group, content.met = "x", {0: 0, 1: 1}
    others = Companions(tmp_path, rank(0))
    others.meet()  # the other has been there once, too
    others.wait_for_ends()
    with pytest.raises(DataError, match="a rank ended while others waited for it"):
        others.meet()
    with lock_run(tmp_path) as content:
        assert content.met == {0: 2, 1: 1}
