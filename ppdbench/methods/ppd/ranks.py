"""Units that torchrun started: rank 0 runs the command, the others serve it.

Only where a method of several units is run; else torchrun's processes share the examples
(`shares`).

Rank 0 hands each of them work by name, so that one run can hold several methods. Nothing here is
touched while an output is being decoded; that is what channels are for.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ppdbench.errors import ConfigError, UnitError, one_line
from ppdbench.methods.ppd.channel import nobody
from ppdbench.methods.ppd.process import START_S, Maker, Server, waited_in_vain

IDLE = timedelta(days=1)  # how long a rank waits for its next output
_LOST: set[int] = set()  # ranks that did not answer in time


def world() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return this process's rank among them."""
    return int(os.environ.get("RANK", "0"))


def wanted(method: str, options: Mapping[str, str]) -> bool:
    """True if a method needs torchrun's processes as units; else they share the examples."""
    return method == "ppd" and options.get("form", "inline") != "inline"


def check_world(form: str, units: int) -> None:
    """Refuse processes that share the examples, or a number of them that a form cannot use."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ConfigError(
            f"ppd: form={form} has {units} units, but torchrun's processes share the examples "
            "here; start it without torchrun, or alone with decode or bench"
        )
    if world() != units:
        raise ConfigError(
            f"ppd: form={form} has {units} units, but torchrun started {world()} processes; use "
            f"--nproc-per-node {units}, or start it without torchrun"
        )


@dataclass(slots=True)
class RankUnit:
    """A unit in a process that torchrun started, as seen from rank 0."""

    name: str
    rank: int
    key: int
    patience_s: float

    @classmethod
    def start(
        cls, name: str, at: int, key: int, make: Maker, order: Any, patience_s: float
    ) -> RankUnit:
        """Let it become a unit; `ready` waits until it can serve."""
        unit = cls(name, at, key, patience_s)
        unit._tell("start", make, order)
        return unit

    def ready(self) -> dict[str, Any]:
        """Wait until the unit's weights are there and return the facts it tells."""
        facts: dict[str, Any] = self._answer(max(START_S, self.patience_s))
        return facts

    def begin(self, task: Any) -> None:
        """Hand it the next output."""
        self._tell("task", task)

    def finish(self) -> Any:
        """Wait for the unit's report of that output."""
        return self._answer(self.patience_s)

    def _tell(self, kind: str, *more: Any) -> None:
        message = (kind, self.key, *more)
        self._within(self.patience_s, lambda: _send(self.rank, message))

    def _within(self, seconds: float, call: Callable[[], Any]) -> Any:
        """Return the result of a call that waits for the rank; one that hangs is given up.

        The group itself waits as long as ranks may idle. A rank is asked nothing more then: what
        it would answer is an answer to something else.
        """
        found: list[Any] = []

        def make() -> None:
            try:
                found.append(call())
            except Exception as error:
                found.append(error)

        if self.rank not in _LOST:
            waiting = threading.Thread(target=make, daemon=True)
            waiting.start()
            waiting.join(seconds)
        if not found:
            _LOST.add(self.rank)
            raise UnitError(waited_in_vain(self.name, seconds))
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def _answer(self, seconds: float) -> Any:
        kind, content = self._within(seconds, lambda: _receive(self.rank))
        if kind == "failed":
            raise UnitError(f"{self.name} failed: {content}")
        return content

    def watch(self, waited_s: float) -> None:
        """torchrun watches it, and ends everything if it dies."""

    def killed(self) -> str | None:
        """The same: it is no child of this process."""
        return None

    def stop(self) -> None:
        """Let it forget its weights."""
        self._tell("stop")

    def kill(self) -> None:
        """Leave the process to torchrun, which ends it with this one; see `led`."""


@contextmanager
def led() -> Iterator[None]:
    """Rank 0's part: the others serve it meanwhile, and end with it whatever happens.

    After an error of a unit they may be anywhere, and nothing they are told would reach them:
    torchrun ends them once this process has failed. So it does where a method that was left out
    of a run lost one.
    """
    if world() == 1:
        yield
        return
    import torch.distributed as dist

    _end_at_once()
    dist.init_process_group("gloo", timeout=IDLE)
    lost = False
    try:
        yield
    except UnitError:
        lost = True
        raise
    finally:
        if not lost and not _LOST:
            with suppress(RuntimeError):
                for other in range(1, world()):
                    _send(other, ("quit",))
            dist.destroy_process_group()


def serve() -> None:
    """Run every rank but the first: become the unit it is told to be, until told to stop."""
    import torch.distributed as dist

    _end_at_once()
    dist.init_process_group("gloo", timeout=IDLE)
    servers: dict[int, Server] = {}
    while (message := _receive(0))[0] != "quit":
        kind, key, *rest = message
        try:
            if kind == "start":
                make, order = rest
                servers[key] = make(order, nobody)
                _send(0, ("ready", servers[key].facts))
            elif kind == "stop":
                servers.pop(key).close()
            else:
                _send(0, ("done", servers[key].serve(*rest)))
        except Exception as error:
            _send(0, ("failed", f"{type(error).__name__}: {one_line(error, 300)}"))
    dist.destroy_process_group()


def _end_at_once() -> None:
    """End when torchrun says so: nothing written in Python runs while a message is awaited."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _send(to: int, message: tuple[Any, ...]) -> None:
    import torch.distributed as dist

    dist.send_object_list([message], dst=to)


def _receive(source: int) -> tuple[Any, ...]:
    import torch.distributed as dist

    box: list[Any] = [None]
    try:
        dist.recv_object_list(box, src=source)
    except RuntimeError as error:
        raise UnitError(f"rank {source} does not answer: {one_line(error)}") from error
    message: tuple[Any, ...] = box[0]
    return message
