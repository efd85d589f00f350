"""`ppdbench` in processes of its own, as ranks of one launch or by itself.

Forked, so that nobody waits for imports; what a command line says goes into files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.runs.store import RunFolder

FORK = multiprocessing.get_context("fork")
PATIENCE_S = 200.0


class Started:
    """One process, and the files of what it says."""

    def __init__(self, words: Sequence[str], place: Path, rank: int, ranks: int) -> None:
        self.out, self.err = place / f"out-{rank}", place / f"err-{rank}"
        self.process = FORK.Process(target=self._main, args=(list(words), rank, ranks))
        self.process.start()

    def _main(self, words: list[str], rank: int, ranks: int) -> None:
        if ranks > 1:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # A pool of threads does not survive a fork; the first call makes a new one.
        torch.set_num_threads(torch.get_num_threads())
        with self.out.open("w") as sys.stdout, self.err.open("w") as sys.stderr:
            code = run(words)
        os._exit(code)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it."""
        if self.process.is_alive():
            os.kill(self.process.pid or 0, how)
        self.process.join()

    def wait(self) -> int:
        """Its exit code."""
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode

    def said(self) -> str:
        """What it wrote to stderr."""
        return self.err.read_text()


@contextmanager
def ranks(words: Sequence[str], place: Path, count: int = 1) -> Iterator[list[Started]]:
    """So many ranks of one launch; none is left behind."""
    place.mkdir(exist_ok=True)
    started = [Started(words, place, rank, count) for rank in range(count)]
    try:
        yield started
    finally:
        for one in started:
            one.kill()


@contextmanager
def meeting(count: int) -> Iterator[None]:
    """What torchrun tells so many ranks on one machine, for those that are forked here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(count)}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**told, "OMP_NUM_THREADS": "1"}.items():
            patched.setenv(name, value)
        yield


def slowed(seconds: Callable[[], float]) -> Any:
    """A RunFolder.append after which there is time to be killed."""
    append = RunFolder.append

    def slow(self: RunFolder, sample: Any) -> None:
        append(self, sample)
        time.sleep(seconds())

    return slow


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Until it holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)
