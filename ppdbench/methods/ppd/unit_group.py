"""The units of one form, whoever started their processes."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

import torch
import torch.multiprocessing

from ppdbench.engine.loading import ModelSpec
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnitError
from ppdbench.machine.cores import Cores
from ppdbench.methods.ppd import ranks
from ppdbench.methods.ppd.alarm import drop_alarm, set_alarm
from ppdbench.methods.ppd.channel import Channel, GroupLink, Link, MessageLayout, SharedLink
from ppdbench.methods.ppd.config import PipelineConfig, device_of
from ppdbench.methods.ppd.direct import own_gpus
from ppdbench.methods.ppd.process import Maker, Unit, can_copy
from ppdbench.methods.ppd.ranks import RankUnit

T = TypeVar("T")
Wires = tuple[Channel, Channel]
LOOK_S = 0.2  # between looks at units that are waited for
_KEYS = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSetup:
    """All that a process needs to become a unit."""

    spec: ModelSpec
    exit_after: int
    capacity: int
    threads: int
    cores: Cores
    rank: int
    link: Link
    passes: str
    """The kind of passes of the process that started it, which are its own."""
    held: StagedModel | None = None
    """The model, in a unit that is a copy of the process which loaded it."""


class JoinTask:
    """A unit's first task: meet the others. Nobody waits for one that failed to load."""


class UnitGroup:
    """The units besides this process; started anew after a failure.

    With `shared`, units of this machine talk through memory, and else through a process group;
    and where they can be copies of this process, they share its weights. Units that have a GPU
    each send from one to the other.
    """

    def __init__(
        self,
        config: PipelineConfig,
        names: Sequence[str],
        make: Maker,
        layout: MessageLayout,
        threads: int,
        cores: Sequence[Cores],
        *,
        shared: bool,
    ) -> None:
        self._config, self._names, self._make = config, names, make
        self._threads, self._cores = threads, cores
        self._direct = own_gpus(config.target.spec, 1 + len(names))
        self._layout, self._shared = layout, shared and ranks.world() == 1 and not self._direct
        self._copies = self._shared and can_copy(config.target.staged.device)
        self._units: list[Unit | RankUnit] = []
        self.weight_bytes: list[int] = [facts["weight_bytes"] for facts in self._start()]

    def _start(self) -> list[dict[str, Any]]:
        set_alarm(self._look)
        try:
            with tempfile.TemporaryDirectory() as folder:
                return self._meet(str(Path(folder) / "meeting"))
        except BaseException:
            self._kill()
            raise

    def _meet(self, meeting: str) -> list[dict[str, Any]]:
        key, device = next(_KEYS), self._config.target.staged.device
        meeting = meeting if ranks.world() == 1 else f"ppd-{key}"
        context = torch.multiprocessing.get_context("fork" if self._copies else "spawn")
        links = [self._link(context, meeting, at) for at in self._ranks()]
        for at, name, link in zip(self._ranks(), self._names, links, strict=True):
            self._units.append(self._begin(context, key, at, name, self._order(at, link)))
        facts = [unit.ready() for unit in self._units]
        for unit in self._units:
            unit.begin(JoinTask())
        self.wires = self._open(links, device)
        for unit in self._units:
            unit.finish()
        return facts

    def _order(self, at: int, link: Link) -> UnitSetup:
        config = self._config
        return UnitSetup(
            spec=device_of(config.target.spec, at),
            exit_after=config.exit_after,
            capacity=config.capacity,
            threads=self._threads,
            cores=self._cores[at - 1],
            rank=at,
            link=link,
            passes=config.passes,
            held=config.target.staged if self._copies else None,
        )

    def _ranks(self) -> range:
        return range(1, 1 + len(self._names))

    def _link(self, context: Any, meeting: str, at: int) -> SharedLink | GroupLink:
        if self._shared:
            return SharedLink.make(context, self._layout)
        world = 1 + len(self._names)
        patience_s = self._config.patience_s
        return GroupLink(meeting, world, at, self._layout, patience_s, self._direct)

    def _begin(self, context: Any, key: int, at: int, name: str, order: Any) -> Unit | RankUnit:
        if ranks.world() > 1:
            return RankUnit.start(name, at, key, self._make, order, self._config.patience_s)
        return Unit.start(context, name, self._make, order, self._config.patience_s)

    def _open(self, links: Sequence[SharedLink | GroupLink], device: torch.device) -> list[Wires]:
        """Open this process's ends of all links; the same groups serve all that need some."""
        groups: list[Any] = []
        wires = []
        for link, unit in zip(links, self._units, strict=True):
            if isinstance(link, SharedLink):
                wires.append(link.open(0, device, unit.watch))
                continue
            groups = groups or self._watched(partial(link.groups, 0, device))
            wires.append(link.within(groups, 0, device))
        return wires

    def _watched(self, call: Callable[[], T]) -> T:
        """Return the result of a call that waits for all units; a death meanwhile ends the wait."""
        if self._direct:  # a GPU is chosen by thread
            return call()
        answer: Queue[T | BaseException] = Queue()

        def made() -> None:
            try:
                answer.put(call())
            except BaseException as error:
                answer.put(error)

        # Nobody can end that wait itself: where a unit is gone it lasts until its own patience.
        threading.Thread(target=made, daemon=True).start()
        while True:
            with suppress(Empty):
                found = answer.get(timeout=LOOK_S)
                if isinstance(found, BaseException):
                    raise found
                return found
            for unit in self._units:
                unit.watch(0.0)

    @contextmanager
    def output(self, tasks: Sequence[Any]) -> Iterator[list[tuple[Wires, Callable[[], Any]]]]:
        """Put every unit to work on one output: yield its wires and what gives its report.

        Whatever goes wrong meanwhile ends the units: they may be anywhere in it. Those that
        torchrun started cannot be started anew, so that it ends the run.
        """
        if not self._units:
            self._start()
        try:
            for unit, task in zip(self._units, tasks, strict=True):
                unit.begin(task)
            yield [(wire, unit.finish) for wire, unit in zip(self.wires, self._units, strict=True)]
        except BaseException as error:
            try:
                self._explain(error)
            finally:
                self._kill()
            if ranks.world() > 1 and isinstance(error, Exception):
                raise UnitError(
                    f"{error}; units that torchrun started do not begin anew: go on with --resume, "
                    "past this example without torchrun"
                ) from error
            raise

    def _explain(self, error: BaseException) -> None:
        """A lost connection is only how a unit's own error looks from here."""
        if isinstance(error, UnitError):
            for unit in self._units:
                unit.watch(0.0)

    def _look(self) -> None:
        """End what this process does if one of the units was killed meanwhile."""
        killed = next(filter(None, (unit.killed() for unit in self._units)), None)
        if killed is not None:
            self._kill()
            raise UnitError(killed)

    def _kill(self) -> None:
        for unit in self._let_go():
            unit.kill()

    def close(self) -> None:
        """Ask the units to end, and wait for them."""
        for unit in self._let_go():
            unit.stop()

    def _let_go(self) -> list[Unit | RankUnit]:
        """The units, whose end is no news from now on."""
        drop_alarm(self._look)
        units, self._units = self._units, []
        return units
