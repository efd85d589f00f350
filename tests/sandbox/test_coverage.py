"""What no layer holds is not run, unless the user takes the risk."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from ppdbench.errors import ConfigError
from ppdbench.sandbox import folder, process
from ppdbench.sandbox.coverage import HELD_BY, unheld
from ppdbench.sandbox.outside import LAYERS, execute
from ppdbench.sandbox.process import SandboxLimits
from tests.processes import wait_for

ALL = set(LAYERS)


def test_all_layers_hold_everything_and_none_hold_nothing() -> None:
    assert unheld(ALL) == []
    assert len(unheld([])) == len(HELD_BY)
    assert all(set(holders) <= ALL for holders in HELD_BY.values())


@pytest.mark.parametrize(
    ("layers", "harm"),
    [
        (ALL - {"seccomp"}, "modes and times of files"),
        (ALL - {"limits"}, "memory"),
        ({"limits", "seccomp", "audit hook", "namespaces"}, "files outside its folder"),
    ],
)
def test_each_harm_needs_a_layer_of_its_own(layers: set[str], harm: str) -> None:
    (said,) = unheld(layers)
    assert harm in said


@pytest.mark.parametrize("files", ["bubblewrap", "own root", "landlock"])
def test_any_wall_around_files_is_enough(files: str) -> None:
    assert unheld({files, "limits", "seccomp"}) == []


def test_nothing_runs_where_it_is_not_held(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = f"open({str(mark)!r}, 'w').close()"
    with pytest.raises(ConfigError, match=r"not run: nothing here holds files .*bubblewrap or"):
        execute(program, layers=("limits",))
    assert not mark.exists()
    found = execute(program, layers=("limits",), unprotected=True)
    assert (found.passed, found.protection) == (True, ("limits",))
    assert mark.exists()


def test_without_any_layer_nothing_stays_all_the_same(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    daemon = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('own', 'w').write(str(os.getpid()))
        os.rename('own', {str(mark)!r})
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists({str(mark)!r}): time.sleep(0.01)
"""
    found = execute(daemon, layers=(), unprotected=True)
    assert found.passed
    wait_for(lambda: not psutil.pid_exists(int(mark.read_text())), 5)


def test_a_folder_goes_however_deep_and_closed_it_is(tmp_path: Path) -> None:
    program = tmp_path / "folder"
    program.mkdir()
    here = os.open(program, os.O_RDONLY)
    try:
        for _ in range(1100):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
    (program / "file").write_text("x")
    (program / "closed").mkdir(0)
    assert folder.fuller_than(program, 1 << 30, 100)
    folder.remove(program)
    assert not program.exists()


def test_a_folder_is_full_by_its_blocks_and_by_its_entries(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 16))
    (tmp_path / "b").symlink_to("/")
    assert not folder.fuller_than(tmp_path, 1 << 20, 2)
    assert folder.fuller_than(tmp_path, 1 << 15, 2)
    assert folder.fuller_than(tmp_path, 1 << 20, 1)


def test_many_files_on_a_disk_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IN_MEMORY", set())
    program = "for n in range(3000): open(str(n), 'w').close()\nwhile True: pass"
    layers = ("limits", "landlock", "seccomp")
    found = execute(program, limits=SandboxLimits(cpu_s=3), layers=layers, unprotected=True)
    assert found.outcome == "too much output"
