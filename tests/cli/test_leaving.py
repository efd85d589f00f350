"""The command ends as soon as all that libraries do at exit is done."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from ppdbench.cli.main import run

SCRIPT = """
import atexit, sys
import ppdbench.cli.main as program

class Taken:
    def __del__(self):
        print("taken apart")

thing = Taken()

def run(words):
    atexit.register(print, "at exit")
    print("no line end", end=", ")
    {}

program.run = run
program.main()
"""


def ended(last: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", SCRIPT.format(last)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_what_was_to_be_done_at_exit_is_done_and_no_object_is_taken_apart() -> None:
    done = ended("return 3")
    assert done.returncode == 3
    assert done.stdout == "no line end, at exit\n"


def test_an_error_that_nobody_expected_is_shown_as_ever() -> None:
    done = ended("raise BaseException('unheard of')")
    assert done.returncode == 1
    assert "unheard of" in done.stderr
    assert "taken apart" in done.stdout


def test_a_group_of_commands_without_one_shows_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["tree"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Usage: ppdbench tree")
    assert told.err == ""


def test_closed_outputs_are_no_error() -> None:
    words = [sys.executable, "-m", "ppdbench", "list", "methods"]
    command = f"exec {shlex.join(words)} >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
