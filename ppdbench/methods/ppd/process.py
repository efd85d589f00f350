"""Compute units as processes that this one starts, watches and ends.

A unit has or loads its part of the model, says that it is ready and then serves one output after
another. Between outputs it sleeps. Whatever goes wrong in it is reported here as what it is; if
it dies without a word, hangs, or loses this process, neither side waits for the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch

from ppdbench.errors import PpdbenchError, UnitError, one_line
from ppdbench.methods.ppd.channel import WatchCall

START_S = 300.0  # to import, load and lay out the weights
STOP_S = 2.0
IDLE_S = 0.2  # how often an idle unit looks whether the process that started it is there


class Server(Protocol):
    """The work of a unit, in the unit's own process."""

    facts: dict[str, Any]

    def serve(self, task: Any) -> Any:
        """One output; what it reports afterwards."""
        ...

    def close(self) -> None:
        """Let go of what other processes would wait for."""
        ...


# Makes a unit ready in its own process, which asks the second while it waits for the others.
Maker = Callable[[Any, WatchCall], Server]


@dataclass(slots=True)
class Unit:
    """A unit in a process of its own, as seen from the one that started it."""

    name: str
    patience_s: float
    _process: Any
    _line: Connection
    _early: list[Any] = field(default_factory=list)
    """The reports that came while this process waited for something else."""

    @classmethod
    def start(cls, context: Any, name: str, make: Maker, order: Any, patience_s: float) -> Unit:
        """Begin; `ready` waits until it can serve."""
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_main, args=(make, order, theirs, os.getpid()), name=name, daemon=True
        )
        with warnings.catch_warnings():
            # That a copy has no threads but one; see `_main`.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return cls(name, patience_s, process, ours)

    def ready(self) -> dict[str, Any]:
        """Wait until the unit's weights are there and return the facts it tells."""
        facts: dict[str, Any] = self._answer(max(START_S, self.patience_s))
        return facts

    def begin(self, task: Any) -> None:
        """Hand it the next output."""
        try:
            self._line.send(task)
        except OSError:
            self.watch(0.0)
            raise

    def finish(self) -> Any:
        """Wait for the unit's report of that output."""
        return self._answer(self.patience_s)

    def watch(self, waited_s: float) -> None:
        """Called while this process waits for the unit: an error if it waits in vain."""
        if self._line.poll():
            self._early.append(self._read())
        if not self._process.is_alive():
            raise UnitError(self._how_it_ended())
        if waited_s > self.patience_s:
            raise UnitError(waited_in_vain(self.name, self.patience_s))

    def killed(self) -> str | None:
        """Return an error message if a signal has ended it; one that fails itself reports why."""
        code = None if self._process.is_alive() else self._process.exitcode
        return self._how_it_ended() if code is not None and code < 0 else None

    def stop(self) -> None:
        """End the process: asked first, then killed."""
        with contextlib.suppress(OSError, ValueError):
            self._line.send(None)
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._line.close()

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._line.close()

    def _answer(self, seconds: float) -> Any:
        if self._early:
            return self._early.pop(0)
        until = time.monotonic() + seconds
        while not self._line.poll(0.1):
            if not self._process.is_alive() and not self._line.poll():
                raise UnitError(self._how_it_ended())
            if time.monotonic() > until:
                raise UnitError(waited_in_vain(self.name, seconds))
        return self._read()

    def _read(self) -> Any:
        try:
            kind, content = self._line.recv()
        except (EOFError, OSError):
            self._process.join(STOP_S)
            raise UnitError(self._how_it_ended()) from None
        if kind == "failed":
            raise UnitError(f"{self.name} failed: {content}")
        return content

    def _how_it_ended(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = "; the machine may be out of memory" if name == "SIGKILL" else ""
            return f"{self.name} was killed by {name}{why}"
        return f"{self.name} ended with exit code {code} before the output was done"


def waited_in_vain(name: str, seconds: float) -> str:
    """Explain that a unit was waited for in vain."""
    return f"{name} has not answered for {seconds:.0f} s; raise patience if it is only slow"


def can_copy(device: torch.device) -> bool:
    """True if a unit can be a copy of this process, whose weights it then shares.

    Not with a GPU in use, and not where the system's own libraries do not stand it (macOS).
    """
    with_gpu = device.type != "cpu" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return sys.platform == "linux" and not with_gpu


def _main(make: Maker, order: Any, line: Connection, parent: int) -> None:
    """A unit's process, from its first line to its last."""
    # An interrupt reaches every process of the terminal; the one that started us decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A copy's first thread remembers helpers for matrix products that were not copied with it,
    # and would wait for them; a new one gets its own.
    work = threading.Thread(target=_serve, args=(make, order, line, parent))
    work.start()
    work.join()
    # Not `exit`: what a copy holds of the process it was is not for it to flush and tidy up.
    os._exit(0)


def _serve(make: Maker, order: Any, line: Connection, parent: int) -> None:
    def watch(waited_s: float) -> None:
        if os.getppid() != parent:
            os._exit(1)

    server = None
    try:
        server = make(order, watch)
        line.send(("ready", server.facts))
        while (task := _next_task(line, watch)) is not None:
            line.send(("done", server.serve(task)))
    except EOFError:
        pass  # whoever started us is gone
    except PpdbenchError as error:
        line.send(("failed", str(error)))
    except Exception as error:
        line.send(("failed", f"{type(error).__name__}: {one_line(error, 300)}"))
    finally:
        if server is not None:
            server.close()


def _next_task(line: Connection, watch: WatchCall) -> Any:
    """Wait for the next task. A copy of a process holds both ends of its line, so it never ends."""
    while not line.poll(IDLE_S):
        watch(0.0)
    return line.recv()
