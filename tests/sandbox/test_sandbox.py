"""What programs try, and that none of it leaves the sandbox or counts as a success."""

from __future__ import annotations

import functools
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from ppdbench.errors import ConfigError
from ppdbench.sandbox import outside
from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.outside import LAYERS, Execution
from ppdbench.sandbox.process import SandboxLimits
from ppdbench.sandbox.seccomp import ARCHITECTURES, program
from tests.conftest import ROOT

QUICK = SandboxLimits(cpu_s=1, wall_s=10)
WRAPPED = ("bubblewrap", "limits", "landlock", "seccomp", "audit hook")
BARE = LAYERS[1:]
NO_NAMESPACES = ("limits", "landlock", "seccomp")
LEAST = ("limits", "audit hook")


def execute(
    program: str,
    limits: SandboxLimits = outside.DEFAULT,
    exam: Exam = outside.NO_EXAM,
    *,
    layers: Sequence[str] = LAYERS,
) -> Execution:
    """Where not everything is held too: what is left is what these tests look at."""
    return outside.execute(program, exam, limits, layers=layers, unprotected=True)


@pytest.fixture(
    params=[WRAPPED, BARE, NO_NAMESPACES, LEAST],
    ids=["bubblewrap", "all but it", "no namespaces", "least"],
)
def layers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """All layers, and what remains where the system offers fewer."""
    chosen: tuple[str, ...] = request.param
    missing = set(chosen) - held(chosen)
    if missing:
        pytest.skip(f"this system has no {', '.join(sorted(missing))}")
    return chosen


@functools.cache
def held(layers: tuple[str, ...]) -> set[str]:
    """Those of them that this system has."""
    return set(execute("", layers=layers).protection)


def children() -> set[int]:
    """Processes below this one, those included that ended and nobody asked after."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def refused(found: Execution) -> bool:
    return found.outcome == "failed" and found.raised in ("PermissionError", "OSError")


def test_a_program_that_runs_to_its_end_has_passed() -> None:
    found = execute("assert sorted([3, 1]) == [1, 3]\nprint('noise')")
    assert found.passed
    assert (found.outcome, found.raised) == ("passed", None)
    assert {"limits", "audit hook"} <= set(found.protection) <= set(LAYERS)


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        ("assert 1 == 2", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("raise ValueError", "ValueError"),
        ("f()", "NameError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError"),
        ("raise type('no name', (Exception,), {})", None),
        ("x = 'half a pair: \ud800'", "UnicodeEncodeError"),
    ],
)
def test_an_error_is_a_failure_that_is_named(source: str, raised: str | None) -> None:
    found = execute(source)
    assert (found.outcome, found.raised) == ("failed", raised)


# Leaving before the tests


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "exit(0)",
        "import os; os.close(1); os.close(2); os._exit(0)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "quit()",
    ],
)
def test_leaving_early_is_no_success(source: str) -> None:
    found = execute(f"{source}\nassert False")
    assert found.outcome in ("failed", "ended early")
    assert not found.passed


ONE = Exam(
    "def check(candidate):\n    assert candidate() == 1\ncheck(answer)", entry_point="answer"
)
FORGED = [
    '{"ready": true}',
    '{"value": 1}',
    '{"outcome": "passed"}',
    '{"outcome": "passed", "secret": ""}',
    '{"outcome": "failed"}',
    '{"outcome": ["passed"]}',
    '{"outcome": "failed", "raised": "\\ud800"}',
    '["passed"]',
    "no json",
]


@pytest.mark.parametrize("line", FORGED)
def test_a_verdict_from_the_program_is_none(line: str) -> None:
    found = execute(
        f"import os\nfor n in range(3, 99):\n    try: os.write(n, {line!r}.encode() + b'\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        exam=ONE,
    )
    assert not found.passed


@pytest.mark.parametrize(
    "cheat",
    [
        "import builtins; builtins.AssertionError = type('Calm', (Exception,), {})",
        "import builtins; builtins.print = builtins.exec = builtins.compile = lambda *a: None",
        "import sys; sys.excepthook = lambda *a: None",
        "import sys; sys.settrace(lambda frame, *a: setattr(frame, 'f_lineno', 9))",
        "import atexit; atexit.register(lambda: print('passed'))",
        "def check(candidate): pass",
        "__builtins__ = {}",
        'import json; json.dumps = lambda what: \'{"outcome": "passed"}\'',
        "import os\nfor n in range(3, 20):\n"
        '    try: os.write(n, b\'{"outcome": "passed"}\\n\' * 2)\n    except OSError: pass',
    ],
)
def test_tests_that_do_not_hold_cannot_be_talked_away(cheat: str) -> None:
    found = execute(f"{cheat}\ndef answer(): return 2", exam=ONE)
    assert found.outcome in ("failed", "ended early", "not judged")


# Reaching out


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


# Using too much


def test_an_endless_loop_is_ended_by_its_processor_time(layers: tuple[str, ...]) -> None:
    loop = "while True:\n try: 1/0\n except: pass"
    assert execute(loop, QUICK, layers=layers).outcome == "timed out"


def test_waiting_is_ended_by_the_clock() -> None:
    found = execute("import time\ntime.sleep(60)", SandboxLimits(wall_s=0.5))
    assert found.outcome == "timed out"


def test_words_now_and_then_do_not_put_the_end_off() -> None:
    source = "import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(0.01)"
    assert execute(source, SandboxLimits(wall_s=1)).outcome == "timed out"


def test_signals_do_not_put_the_end_off() -> None:
    source = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
"""
    assert execute(source, QUICK).outcome == "timed out"


@pytest.mark.parametrize("where", ["1", "2"])
def test_endless_output_is_cut(where: str, layers: tuple[str, ...]) -> None:
    source = f"import os\nwhile True: os.write({where}, b'x' * 10000)"
    assert execute(source, layers=layers).outcome == "too much output"


def test_more_output_than_anyone_reads_is_too_much_wherever_it_goes() -> None:
    source = "import os\nwhile True:\n for n in range(3, 99):\n  try: os.write(n, b'x' * 9999)\n"
    source += "  except OSError: pass"
    assert execute(source, QUICK).outcome == "too much output"


def test_memory_is_bounded(layers: tuple[str, ...]) -> None:
    assert execute("x = bytearray(3 << 30)", layers=layers).outcome == "out of memory"
    grow = "x = []\nwhile True: x.append(bytearray(1 << 24))"
    found = execute(grow, SandboxLimits(memory_bytes=1 << 28), layers=layers)
    assert found.outcome == "out of memory"


def test_files_are_bounded(layers: tuple[str, ...]) -> None:
    assert refused(execute("open('big', 'wb').write(bytes(5 << 20))", layers=layers))
    assert refused(execute("x = [open('a', 'w') for _ in range(100)]", layers=layers))


def test_the_folder_as_a_whole_is_bounded() -> None:
    many = "for n in range(100): open(str(n), 'wb').write(bytes(1 << 20))"
    assert refused(execute(many)) or execute(many).outcome == "too much output"


# From outside


def test_nothing_outlives_whoever_started_it(tmp_path: Path) -> None:
    mark = f"loop_{tmp_path.name}"
    source = f"from ppdbench.sandbox.outside import execute\nexecute('while True: {mark} = 1')"
    starter = subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path)
    try:
        inside = _descendants(starter.pid, at_least=1)
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    gone, alive = psutil.wait_procs(inside, timeout=10)
    assert gone
    assert not alive


def _descendants(pid: int, at_least: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = psutil.Process(pid).children(recursive=True)
        if len(found) >= at_least:
            time.sleep(0.5)  # it may be about to fork once more
            return psutil.Process(pid).children(recursive=True)
        time.sleep(0.05)
    raise AssertionError("the sandbox did not start")


def test_an_interpreter_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match=r"sandbox for generated code does not start.*leave"):
        execute("pass")


def test_no_pipe_and_no_process_is_left_open() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    execute("pass")
    before, others = open_files(), children()
    for source in ("pass", "import os; os._exit(1)", "while True: print('x' * 999)"):
        execute(source, QUICK)
    assert open_files() == before
    assert children() == others


def test_interrupting_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outside, "_watch", interrupted)
    others = children()
    with pytest.raises(KeyboardInterrupt):
        execute("while True: pass")
    assert children() == others


@pytest.mark.parametrize("machine", list(ARCHITECTURES))
def test_filters_are_whole_instructions_and_end_in_permission(machine: str) -> None:
    rules = program(machine)
    assert all(len(rule) == 8 for rule in rules)
    assert rules[-1][4:] == (0x7FFF0000).to_bytes(4, "little")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of another machine")
def test_refused_numbers_are_those_of_this_machine() -> None:
    if "seccomp" not in held(LAYERS):
        pytest.skip("this system has no seccomp")
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.socket(2, 1, 0), lambda: libc.kill(1, 0), lambda: libc.fork(),
             lambda: libc.unshare(0x10000000), lambda: libc.execv(b'/bin/true', None),
             lambda: libc.prlimit(1, 0, None, None), lambda: libc.ptrace(0, 0, 0, 0)):
    ctypes.set_errno(0)
    assert call() == -1 and ctypes.get_errno() == 1, ctypes.get_errno()
assert libc.prlimit(0, 0, None, ctypes.create_string_buffer(16)) == 0
"""
    assert execute(source, layers=NO_NAMESPACES).passed
