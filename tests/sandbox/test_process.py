"""A process of the sandbox from outside: what ends it, and that nothing of it stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ppdbench.errors import ConfigError
from ppdbench.sandbox import outside
from ppdbench.sandbox.process import SandboxLimits
from tests.sandbox.made import (
    QUICK,
    children,
    execute,
    refused,
)

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
