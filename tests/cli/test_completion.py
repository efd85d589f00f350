"""What Tab offers, asked for as each shell asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ppdbench.cli.completion import known_methods
from ppdbench.files import papers
from ppdbench.methods import METHODS
from ppdbench.tasks import task_names

ASK = (
    "import os, sys; from ppdbench.cli.main import run; "
    "import atexit; atexit.register(lambda: os._exit(9) if 'torch' in sys.modules else None); "
    "run([])"
)


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """An environment where `ppdbench` is this checkout."""
    (tmp_path / "here").mkdir()
    script = tmp_path / "here" / "ppdbench"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom ppdbench.cli.main import main\nmain()\n", "utf-8"
    )
    script.chmod(0o755)
    here = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PATH": f"{script.parent}:{os.environ['PATH']}", "PYTHONPATH": here}


def in_bash(line: str, program: dict[str, str], folder: Path) -> list[str]:
    """What bash has after Tab at the end of a line, split into words as its readline does."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    script = r"""
        eval "$(_PPDBENCH_COMPLETE=bash_source ppdbench)"
        compopt() { :; }  # outside of readline there is nothing to set
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<< "$(sed -E 's/([:=])/ \1 /g' <<< "$1")"
        [[ $1 == *[\ :=] ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _ppdbench_completion ppdbench
        printf '%s\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", line],
        env=program,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout.split()


def test_what_is_read_off_the_source_is_what_is_registered() -> None:
    registered = {name: [o.name for o in METHODS.get(name).options()] for name in METHODS}
    own = {n: o for n, o in registered.items() if METHODS.get(n).make.__module__.startswith("ppd")}
    assert known_methods() == own


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ppdbench be", ["bench"]),
        ("ppdbench decode --method lay", ["layerskip"]),
        ("ppdbench decode --method=lay", ["layerskip"]),
        ("ppdbench bench --method layerskip:exit", ["exit_layer="]),
        ("ppdbench bench --method layerskip:exit_layer=2,draft", ["2,draft_length="]),
        ("ppdbench bench --method transformers:as", ["assistant"]),
        ("ppdbench decode --method ppd --set pat", ["patience="]),
        ("ppdbench probe --task gsm", ["gsm8k"]),
        ("ppdbench probe --model synthetic:llama-13", ["llama-13b"]),
        ("ppdbench table prompt_ppd/cl", ["prompt_ppd/claims"]),
        ("ppdbench list methods eag", ["eagle"]),
        ("ppdbench bench --data bui", ["builtin"]),
    ],
)
def test_bash_is_offered_names(
    line: str, offered: list[str], program: dict[str, str], tmp_path: Path
) -> None:
    assert in_bash(line, program, tmp_path) == offered


def asked(words: str, last: str) -> list[str]:
    """What is offered to zsh, which asks with its words; torch must not be loaded for it."""
    environment = os.environ | {
        "_PPDBENCH_COMPLETE": "zsh_complete",
        "COMP_WORDS": f"{words} {last}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, "torch was loaded"
    lines = done.stdout.splitlines()
    return [lines[i + 1].replace("\\", "") for i in range(0, len(lines), 3) if lines[i] == "plain"]


def test_all_names_are_offered_without_loading_torch() -> None:
    assert set(asked("ppdbench bench --method", "")) == set(known_methods())
    assert asked("ppdbench probe --task", "") == task_names()
    assert asked("ppdbench table", "") == papers.names()
    assert "reference" in asked("ppdbench decode --model", "")


def test_fish_is_offered_names(program: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    script = (
        "_PPDBENCH_COMPLETE=fish_source ppdbench | source; "
        "complete -C 'ppdbench bench --method layerskip:exit'"
    )
    done = subprocess.run(
        ["fish", "-c", script],
        env=program | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "layerskip:exit_layer=" in done.stdout
