"""What a program inside the sandbox can reach: none of ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ppdbench.sandbox.outside import LAYERS
from tests.conftest import ROOT
from tests.sandbox.made import (
    LEAST,
    QUICK,
    children,
    execute,
    held,
    refused,
)


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['/bin/sh', '-c', ':'])",
        "import os\nif os.system('true') != 0: raise OSError",
        "import os\nos.execv('/bin/true', ['true'])",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    ],
)
def test_no_other_process_is_started(bomb: str, layers: tuple[str, ...]) -> None:
    before = children()
    assert refused(execute(bomb, QUICK, layers=layers))
    assert children() == before


@pytest.mark.parametrize("target", ["os.getppid()", "0", "-1", "tests"])
def test_no_process_can_be_killed(target: str, layers: tuple[str, ...]) -> None:
    # Groups get a signal that hurts nobody: were it let through, it would reach everything.
    kind = "SIGCONT" if target in ("0", "-1") else "SIGKILL"
    number = os.getpid() if target == "tests" else target
    assert refused(execute(f"import os, signal\nos.kill({number}, signal.{kind})", layers=layers))


def test_no_connection_is_made(layers: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        connect = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
        assert refused(execute(connect, layers=layers))
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_network_is_gone_even_for_calls_past_python() -> None:
    if "seccomp" not in held(LAYERS):
        pytest.skip("this system has no seccomp")
    call = "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) == -1"
    assert execute(call, layers=[name for name in LAYERS if name != "audit hook"]).passed
    assert refused(execute(call, layers=LEAST))


@pytest.mark.parametrize(
    "attempt",
    [
        "open({outside!r}).read()",
        "open({outside!r}, 'a').write('x')",
        "import os\nos.listdir({folder!r})",
        "import os\nos.remove({outside!r})",
        "import os\nos.symlink({outside!r}, 'link')\nopen('link').read()",
        "import os\nos.rename('.', {folder!r} + '/moved')",
        "import os\nos.open('/proc/self/environ', os.O_RDONLY)",
        "open('/etc/passwd').read()",
    ],
)
def test_files_outside_stay_closed(attempt: str, tmp_path: Path, layers: tuple[str, ...]) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("mine")
    source = attempt.format(outside=str(outside), folder=str(tmp_path))
    assert refused(execute(source, layers=layers))
    assert outside.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [outside]


def test_the_project_and_the_home_stay_closed(layers: tuple[str, ...]) -> None:
    for place in (ROOT / "README.md", Path.home()):
        look = "open({0!r})" if place.is_file() else "import os\nos.listdir({0!r})"
        assert refused(execute(look.format(str(place)), layers=layers))


def test_the_folder_is_empty_and_its_own(layers: tuple[str, ...]) -> None:
    source = """
import os, tempfile
assert os.listdir('.') == []
with open('note', 'w') as file:
    file.write('kept')
assert open('note').read() == 'kept'
with tempfile.NamedTemporaryFile() as file:
    assert file.name.startswith(os.getcwd())
"""
    assert execute(source, layers=layers).passed
    assert execute(source, layers=layers).passed  # nothing is left of the first


def test_what_is_installed_can_be_imported(layers: tuple[str, ...]) -> None:
    source = "import math, re, heapq, json, random, numpy\nassert numpy.ones(3).sum() == 3"
    assert execute(source, layers=layers).passed


def test_the_environment_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPDBENCH_TOKEN", "secret")
    source = "import os\nassert 'PPDBENCH_TOKEN' not in os.environ and 'PATH' not in os.environ"
    assert execute(source).passed


def test_sets_have_the_same_order_every_time() -> None:
    order = "".join(set("abcdefghij"))
    here = subprocess.run(
        [sys.executable, "-c", "print(''.join(set('abcdefghij')))"],
        env={"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert execute(f"assert ''.join(set('abcdefghij')) == {here!r}").passed
    assert sorted(order) == sorted(here)
