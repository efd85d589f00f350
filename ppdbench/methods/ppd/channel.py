"""Channels between compute units: one direction each, token ids and hidden states, no more.

Both kinds of channel fill and read buffers that exist before decoding begins. Units on one
machine share memory: the receiver watches a semaphore and only sleeps when nothing comes for
long, so that a message takes microseconds. Units started by torchrun, and the replicas of the
paper's own form, send over torch.distributed; so do units that have a GPU each (`direct`).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from ppdbench.errors import UnitError, one_line

SLOTS = 4
SPIN_S = 0.02  # then the receiver sleeps, so that an idle unit costs nothing
LOOK_S = 0.1  # how often a sleeping receiver looks whether the other side is alive


class MessageKind(IntEnum):
    """The kind of a message."""

    PROMPT = 0  # hidden states of prompt tokens
    OFFER = 1  # hidden states of candidates, with their ids
    TAKE = 2  # the hidden state of the newest token
    TOKEN = 3  # a chosen token, with its logit
    END = 4  # the output ends


KINDS = tuple(MessageKind)


def _whole_lines(size: int) -> int:
    """Rounded up to what processors move at once."""
    return -(-size // 64) * 64


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """Room in a message: ids, and rows of hidden states of one width and type."""

    ids: int
    rows: int
    width: int
    dtype: torch.dtype

    HEAD = 5  # kind, number of ids, number of rows, time sent, the bits of a logit

    @property
    def nbytes(self) -> int:
        """The size of one message; it and its states begin at multiples of 64 bytes."""
        return _whole_lines(self._states_at + self._state_bytes)

    @property
    def _state_bytes(self) -> int:
        return self.rows * self.width * self.dtype.itemsize

    @property
    def _states_at(self) -> int:
        return _whole_lines(8 * (self.HEAD + self.ids))

    def parts(self, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers and the states [row, width] of a message in a buffer of bytes."""
        at = self._states_at
        numbers = buffer[: 8 * (self.HEAD + self.ids)].view(torch.int64)
        states = buffer[at : at + self._state_bytes].view(self.dtype)
        return numbers, states.view(self.rows, self.width)

    def view(self, buffer: Tensor) -> Packet:
        """The message in a buffer of bytes."""
        return Packet(*self.parts(buffer))


@dataclass(slots=True)
class Message:
    """A message that arrived; `states` [1, rows, hidden] last until the next one is asked for."""

    kind: MessageKind
    ids: list[int]
    states: Tensor
    logit: float


class Packet:
    """One message in memory, written and read as plain numbers and bytes.

    A tensor operation takes microseconds, and a message would need a dozen of them.
    """

    def __init__(self, numbers: Tensor, states: Tensor) -> None:
        plain: Any = numbers.numpy()
        self._fast: Any = memoryview(plain)
        self._logit: Any = memoryview(plain[4:5].view("float64"))
        self._at, self._row_bytes = states.data_ptr(), states.shape[1] * states.element_size()
        self._first = [states[None, :n] for n in range(len(states) + 1)]  # so many rows each

    def write(
        self, kind: MessageKind, ids: Sequence[int], states: Tensor | None, logit: float
    ) -> None:
        """Fill in a message; `states` is [1, rows, hidden]."""
        fast = self._fast
        rows = 0 if states is None else states.shape[1]
        fast[0], fast[1], fast[2] = kind, len(ids), rows
        for place, token in enumerate(ids, start=MessageLayout.HEAD):
            fast[place] = token
        self._logit[0] = logit
        if states is not None:
            self._put(states, rows)
        fast[3] = time.perf_counter_ns()

    def _put(self, states: Tensor, rows: int) -> None:
        if states.is_cpu and states.is_contiguous():
            ctypes.memmove(self._at, states.data_ptr(), rows * self._row_bytes)
        else:
            self._first[rows].copy_(states)

    def read(self, landing: Tensor | None) -> tuple[Message, int]:
        """The message and when it was sent; its states where they are, or moved to `landing`."""
        fast = self._fast
        kind, n, rows = KINDS[fast[0]], fast[1], fast[2]
        ids = fast[MessageLayout.HEAD : MessageLayout.HEAD + n].tolist()
        states = self._first[rows]
        if landing is not None:
            states = landing[:, :rows].copy_(states)
        return Message(kind, ids, states, self._logit[0]), fast[3]


class Channel:
    """One direction between two units, and the time that communication took on it.

    That is handing over, and what a waiting receiver loses: what is still under way when it begins
    to wait costs from the moment it was sent; what had arrived before costs nothing but its
    reading. Clocks agree on one machine.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0

    def send(
        self,
        kind: MessageKind,
        ids: Sequence[int] = (),
        states: Tensor | None = None,
        logit: float = 0.0,
    ) -> None:
        """Hand a message over; does not wait for the receiver."""
        began = time.perf_counter_ns()
        self._hand_over(kind, ids, states, logit)
        self.spent_s += 1e-9 * (time.perf_counter_ns() - began)

    def ready(self) -> bool:
        """True if the next message is there already, as far as one can tell without waiting."""
        return False

    def receive(self) -> Message:
        """The next message, waiting for it; the one before is gone then."""
        began = time.perf_counter_ns()
        message, sent = self._take()
        self.spent_s += 1e-9 * max(0, time.perf_counter_ns() - max(began, sent))
        return message

    def _hand_over(
        self, kind: MessageKind, ids: Sequence[int], states: Tensor | None, logit: float
    ) -> None:
        raise NotImplementedError

    def _take(self) -> tuple[Message, int]:
        """The next message, and when it was sent."""
        raise NotImplementedError


# Asked while a receiver waits, with the seconds it has waited so far; raises to end the wait.
WatchCall = Callable[[float], None]


def nobody(waited_s: float = 0.0) -> None:
    """Watch nobody while waiting."""


# Lets another process have the core while a receiver watches; not everywhere.
yield_core: Callable[[], None] = getattr(os, "sched_yield", nobody)


class SharedChannel(Channel):
    """A ring of messages in memory that two processes of one machine share."""

    def __init__(self, context: Any, layout: MessageLayout) -> None:
        super().__init__()
        self.layout = layout
        self._memory = torch.zeros(SLOTS, layout.nbytes, dtype=torch.uint8)
        self._memory.share_memory_()  # type: ignore[no-untyped-call]
        self._filled, self._free = context.Semaphore(0), context.Semaphore(SLOTS)
        self.connect()

    def connect(self, device: torch.device | None = None, watch: WatchCall = nobody) -> None:
        """Make ready in this process: where states land, and whom to ask while nothing comes."""
        self._packets = [self.layout.view(slot) for slot in self._memory]
        self._landing = _landing(self.layout, device)
        self._watch = watch
        self._count = 0
        self._seen = False  # that a message is there which has not been received
        self._held = False  # that the one received last still takes up its slot
        self.spent_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that another process needs; each has views and counts of its own."""
        return {n: getattr(self, n) for n in ("layout", "_memory", "_filled", "_free")}

    def _hand_over(
        self, kind: MessageKind, ids: Sequence[int], states: Tensor | None, logit: float
    ) -> None:
        self._wait(self._free)
        self._packets[self._count % SLOTS].write(kind, ids, states, logit)
        self._count += 1
        self._filled.release()

    def ready(self) -> bool:
        self._seen = self._seen or self._filled.acquire(False)
        return self._seen

    def _take(self) -> tuple[Message, int]:
        if self._held:
            self._free.release()
        if not self.ready():
            self._wait(self._filled)
        self._seen, self._held = False, True
        taken = self._packets[self._count % SLOTS].read(self._landing)
        self._count += 1
        return taken

    def _wait(self, semaphore: Any) -> None:
        if semaphore.acquire(False):
            return
        began = time.perf_counter()
        while time.perf_counter() < began + SPIN_S:
            if semaphore.acquire(False):
                return
            yield_core()
        while not semaphore.acquire(True, LOOK_S):
            self._watch(time.perf_counter() - began)


def _landing(layout: MessageLayout, device: torch.device | None) -> Tensor | None:
    """Make the buffer for states that a GPU is to read; a CPU reads them where they arrive."""
    if device is None or device.type == "cpu":
        return None
    return torch.zeros(1, layout.rows, layout.width, dtype=layout.dtype, device=device)


class GroupChannel(Channel):
    """Messages of one size to and from one rank of a torch.distributed process group.

    They go through host memory, whatever device the model is on. A message leaves when the
    other side asks for it, so that a few may be under way.
    """

    def __init__(self, layout: MessageLayout, peer: int, group: Any, device: torch.device) -> None:
        super().__init__()
        self._peer, self._group, self._source = peer, group, group
        self._out = torch.zeros(SLOTS, layout.nbytes, dtype=torch.uint8)
        self._back = torch.zeros(layout.nbytes, dtype=torch.uint8)
        self._packets = [layout.view(slot) for slot in self._out]
        self._under_way: list[Any] = [None] * SLOTS
        self._count = 0
        self._received = layout.view(self._back)
        self._landing = _landing(layout, device)

    def _hand_over(
        self, kind: MessageKind, ids: Sequence[int], states: Tensor | None, logit: float
    ) -> None:
        slot = self._count % SLOTS
        self._count += 1
        with self._answered():
            if self._under_way[slot] is not None:
                self._under_way[slot].wait()
            self._packets[slot].write(kind, ids, states, logit)
            self._under_way[slot] = self._group.send([self._out[slot]], self._peer, 0)

    def _take(self) -> tuple[Message, int]:
        with self._answered():
            self._source.recv([self._back], self._peer, 0).wait()
        return self._received.read(self._landing)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise UnitError(f"unit {self._peer} does not answer: {one_line(error)}") from error


def take_spent(*channels: Channel) -> float:
    """Seconds that these channels took since they were last asked."""
    total = 0.0
    for channel in channels:
        total += channel.spent_s
        channel.spent_s = 0.0
    return total


class Link(Protocol):
    """A way between the first process of a form and one of its units, before it is open."""

    def open(self, rank: int, device: torch.device, watch: WatchCall) -> tuple[Channel, Channel]:
        """Open the channels to receive from and to send to, in the process with this rank."""
        ...


@dataclass(frozen=True, slots=True)
class SharedLink:
    """Shared memory, between rank 0 and the unit that gets this object."""

    to_unit: SharedChannel
    from_unit: SharedChannel

    @classmethod
    def make(cls, context: Any, layout: MessageLayout) -> SharedLink:
        """Make a link over fresh memory."""
        return cls(SharedChannel(context, layout), SharedChannel(context, layout))

    def open(self, rank: int, device: torch.device, watch: WatchCall) -> tuple[Channel, Channel]:
        for channel in (self.to_unit, self.from_unit):
            channel.connect(device, watch)
        ours = (self.from_unit, self.to_unit)
        return ours if rank == 0 else ours[::-1]


@dataclass(frozen=True, slots=True)
class GroupLink:
    """A process group of its own, so that several can live in one process.

    Its members find each other in a file, or, where torchrun started them, under a name in
    torchrun's own store. `peer` is the unit that this link leads to from rank 0. `direct` says
    that every member has a device of its own, from which messages go to the other's.
    """

    meeting: str
    world: int
    peer: int
    layout: MessageLayout
    patience_s: float
    direct: bool = False

    def open(self, rank: int, device: torch.device, watch: WatchCall) -> tuple[Channel, Channel]:
        return self.within(self.groups(rank, device), rank, device)

    def groups(self, rank: int, device: torch.device) -> list[Any]:
        """Meet the others: one group, or one for what rank 0 sends and one for what it gets."""
        names = [f"{self.meeting}-down", f"{self.meeting}-up"] if self.direct else [self.meeting]
        kind = "nccl" if self.direct and device.type == "cuda" else "gloo"
        return [join(name, rank, self.world, self.patience_s, kind) for name in names]

    def within(
        self, groups: Sequence[Any], rank: int, device: torch.device
    ) -> tuple[Channel, Channel]:
        """The same in groups that are there already."""
        peer = self.peer if rank == 0 else 0
        channel: GroupChannel
        if self.direct:
            from ppdbench.methods.ppd.direct import DirectChannel

            down, up = groups
            ours = (down, up) if rank == 0 else (up, down)
            channel = DirectChannel(self.layout, peer, ours, device)
        else:
            channel = GroupChannel(self.layout, peer, groups[0], device)
        return channel, channel


def join(meeting: str, rank: int, world: int, patience_s: float, kind: str = "gloo") -> Any:
    """Meet the other processes of a group; returns when all are there."""
    import torch.distributed as dist

    patience = timedelta(seconds=patience_s)
    store: Any
    if dist.is_initialized():
        default = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore(meeting, default)  # type: ignore[attr-defined]
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all of them on this machine
        store = dist.FileStore(meeting, world)  # type: ignore[attr-defined]
    if kind == "nccl":
        from ppdbench.methods.ppd.direct import nccl

        return nccl(store, rank, world, patience)
    return dist.ProcessGroupGloo(store, rank, world, patience)
