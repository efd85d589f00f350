"""Units that torchrun started: rank 0 runs the command, the others serve it.

Only where a method of several units is run; else torchrun's processes share the examples
(`shares`).

Rank 0 hands each of them work by name, so that one run can hold several methods. Nothing here is
touched while an output is being decoded; that is what channels are for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ppdbench.errors import ConfigError, UnitError
from ppdbench.pipeline.channel import nobody
from ppdbench.pipeline.process import Maker, Server

IDLE = timedelta(days=1)  # how long a rank waits for its next output


def world() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this is."""
    return int(os.environ.get("RANK", "0"))


def wanted(method: str, options: Mapping[str, str]) -> bool:
    """Whether a method needs torchrun's processes as units; else they share the examples."""
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

    @classmethod
    def start(cls, name: str, at: int, key: int, make: Maker, order: Any) -> RankUnit:
        """Let it become a unit; `ready` waits until it can serve."""
        unit = cls(name, at, key)
        _send(at, ("start", key, make, order))
        return unit

    def ready(self) -> dict[str, Any]:
        """What the unit says of itself once its weights are there."""
        facts: dict[str, Any] = self.finish()
        return facts

    def begin(self, task: Any) -> None:
        """Hand it the next output."""
        _send(self.rank, ("task", self.key, task))

    def finish(self) -> Any:
        """What it reports of that output."""
        kind, content = _receive(self.rank)
        if kind == "failed":
            raise UnitError(f"{self.name} failed: {content}")
        return content

    def watch(self, waited_s: float) -> None:
        """torchrun watches it, and ends everything if it dies."""

    def stop(self) -> None:
        """Let it forget its weights."""
        _send(self.rank, ("stop", self.key))

    def kill(self) -> None:
        """It belongs to torchrun, which ends it when this process ends."""


@contextmanager
def led() -> Iterator[None]:
    """Rank 0's part: the others serve it meanwhile, and end with it whatever happens."""
    if world() == 1:
        yield
        return
    import torch.distributed as dist

    _end_at_once()
    dist.init_process_group("gloo", timeout=IDLE)
    try:
        yield
    finally:
        with suppress(RuntimeError):
            for other in range(1, world()):
                _send(other, ("quit",))
        dist.destroy_process_group()


def serve() -> None:
    """What all ranks but the first do: become what they are told, until told to stop."""
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
            _send(0, ("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    dist.destroy_process_group()


def _end_at_once() -> None:
    """When torchrun says so: nothing written in Python runs while a message is awaited."""
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
        text = " ".join(str(error).split())[:200]
        raise UnitError(f"rank {source} does not answer: {text}") from error
    message: tuple[Any, ...] = box[0]
    return message
