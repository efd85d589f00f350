"""Ctrl-C ends a command with one line, however long the key is held down."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppdbench.cli.interrupts import HELD_S, Interrupts

LOOKED_S, PATIENCE_S = 0.05, 120.0


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put back what the signals did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_comes_again_at_once_is_the_same_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.0 + HELD_S / 100, 1.0 + HELD_S / 2, 1.0 + HELD_S])
    monkeypatch.setattr("ppdbench.cli.interrupts.time.monotonic", lambda: next(times))
    heard = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        heard(signal.SIGINT, None)
    heard(signal.SIGINT, None)  # held down
    heard(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):  # still: a library dropped the first
        heard(signal.SIGINT, None)


def test_an_ignored_ctrl_c_stays_ignored_unless_asked_for(handlers: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Interrupts().listen()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert isinstance(signal.getsignal(signal.SIGTERM), Interrupts)
    Interrupts().listen(to_ignored=True)
    assert isinstance(signal.getsignal(signal.SIGINT), Interrupts)


def _hear_ctrl_c() -> None:
    """Have Ctrl-C heard in the background, too, where shells have it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_key_held_down_ends_a_run_with_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("bench", "--offline", "--task", "gsm8k", "--limit", "60", "--out", str(run))
    with subprocess.Popen(
        [sys.executable, "-m", "ppdbench", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_ctrl_c,
    ) as bench:
        until = time.monotonic() + PATIENCE_S
        while not any(run.glob("samples*")) and time.monotonic() < until:
            time.sleep(LOOKED_S)
        while bench.poll() is None:
            bench.send_signal(signal.SIGINT)
            time.sleep(LOOKED_S / 2)
        said = bench.stderr.read() if bench.stderr else ""
    assert bench.returncode == 130
    assert "ppdbench: interrupted" in said
    assert "Traceback" not in said
