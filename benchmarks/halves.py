"""The best that a machine allows two units: each half of a model alone, and both at once.

Two cores share a memory, and what one half takes from it the other waits for. Nothing passes
between the halves here: what is lost here no way of talking to each other brings back.

Alone they run in turns on one core, so that, as in decoding, all weights of the model have passed
through the caches between two calls of one half.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import Session
from ppdbench.machine.clock import Clock
from ppdbench.machine.cores import confine, confined
from ppdbench.methods.ppd.forms import Form
from ppdbench.methods.ppd.log import UnitLog
from ppdbench.methods.ppd.strategy import PredictivePipelined
from ppdbench.methods.ppd.units import LowerLayers, UpperLayers
from ppdbench.stats import median

AT = 128  # tokens in the middle of a sequence
PATIENCE_S = 120.0  # one half waits for the other
BURST = 10  # turns in a row: a core that has just been asleep is not yet what it is at work


@dataclass(frozen=True, slots=True)
class Halves:
    """Milliseconds, medians over rounds; `missed` is the lower half for a token of its own."""

    greedy: float
    missed: float
    lower_alone: float
    lower_together: float
    upper_alone: float
    upper_together: float

    def speedup(self, p: float) -> float:
        """Over greedy decoding with this match rate, if talking to each other took no time."""
        return self._speedup(p, self.lower_together, self.upper_together)

    def speedup_apart(self, p: float) -> float:
        """The same on units with a memory each: what is lost is lost to two heads per token."""
        return self._speedup(p, self.lower_alone, self.upper_alone)

    def _speedup(self, p: float, lower: float, upper: float) -> float:
        return self.greedy / (max(lower, upper) + (1 - p) * self.missed)


class Work:
    """Both halves of a model over one sequence, as the units run them."""

    def __init__(self, loaded: Loaded, k: int, head: str) -> None:
        staged = loaded.staged
        self.middle = PredictivePipelined().exit_in(staged.n_layers)
        config = _split(loaded, AT + 8, k, head, self.middle).config
        self.session = session = Session(staged, AT + 8, spare=k)
        step = session.steps.prefill(AT)
        prompt = session.ids([3] * AT)
        self.hidden = session.run(session.embed(prompt, step), 0, staged.n_layers, step)[:, -1:]
        self._lower = LowerLayers(session, self.middle, k, UnitLog("A"), config.early_head())
        self._upper = UpperLayers(session, self.middle, Chooser(Target()))

    def lower(self) -> None:
        """The candidates and what may follow them."""
        self._lower.rows = AT
        words = self._lower.candidates(self.hidden, 0)
        self._lower.look_ahead(words, 0)

    def missed(self) -> None:
        """One token through the lower half."""
        session, step = self.session, self.session.chain(1, start=AT)
        session.run(session.embed(session.ids([3]), step), 0, self.middle, step)

    def upper(self) -> None:
        """One row through the upper half, and its token."""
        self._upper.rows = AT
        self._upper.token(self.hidden)

    def greedy(self) -> None:
        """One token through the whole model."""
        session, step = self.session, self.session.chain(1, start=AT)
        hidden = session.run(session.embed(session.ids([3]), step), 0, session.model.n_layers, step)
        self._upper.choose(hidden)


@torch.inference_mode()
def measure(loaded: Loaded, k: int, rounds: int, head: str = "") -> Halves:
    """One thread each, in turns: both halves at once; then either, a miss and greedy alone.

    Candidates are read out with the head in this folder, or with the model's own.
    """
    work = Work(loaded, k, head)
    context = multiprocessing.get_context("fork")
    gates, ours, theirs = context.Barrier(2, timeout=PATIENCE_S), *context.Pipe()
    other = context.Process(target=_upper_half, args=(work, rounds, gates, theirs), daemon=True)
    other.start()
    cores = sorted(os.sched_getaffinity(0))
    together: list[float] = []
    alone: list[list[float]] = [[], [], [], []]
    with confined((cores[0],), 1):
        for _ in range(rounds):
            gates.wait()
            together += _timed(work.lower)[0]
            gates.wait()  # from here on the other process sleeps
            found = _timed(work.lower, work.upper, work.missed, work.greedy)
            alone = [held + new for held, new in zip(alone, found, strict=True)]
    lower, upper, missed, greedy = map(median, alone)
    upper_together = median(ours.recv())
    other.join()
    return Halves(
        greedy=greedy,
        missed=missed,
        lower_alone=lower,
        lower_together=median(together),
        upper_alone=upper,
        upper_together=upper_together,
    )


@torch.inference_mode()
def _upper_half(work: Work, rounds: int, gates: Any, line: Any) -> None:
    """The other process; it waits asleep while it has no turn."""
    cores = sorted(os.sched_getaffinity(0))
    confine((cores[-1],), 1)
    together: list[float] = []
    for _ in range(rounds):
        gates.wait()
        together += _timed(work.upper)[0]
        gates.wait()
    line.send(together)


def _timed(*parts: Callable[[], None]) -> list[list[float]]:
    """Milliseconds of each of the parts, in turns for a burst, less the first and last turn.

    Two bursts that begin at once do not end at once: the last call may run alone.
    """
    taken: list[list[float]] = [[] for _ in parts]
    for _ in range(BURST):
        for part, ms in zip(parts, taken, strict=True):
            began = time.perf_counter()
            part()
            ms.append(1e3 * (time.perf_counter() - began))
    return [ms[1:-1] for ms in taken]


def _split(loaded: Loaded, capacity: int, k: int, head: str = "", exit_after: int = 0) -> Form:
    """Decoding on two units, which have not begun."""
    method = PredictivePipelined(form="split", k=k, head=head, exit_after=exit_after)
    return method.prepare(Setup(loaded, capacity))


def added_bytes(loaded: Loaded, k: int) -> int:
    """Return the memory that decoding on two units takes beyond decoding on one.

    Shared pages count once: those of the weights, if there is one copy of them.
    """
    capacity, chooser = 64, Chooser(Target())
    session = Session(loaded.staged, capacity, spare=k)
    prompt, limits = [3] * 16, Limits(16)
    with torch.inference_mode():
        session.reset(prompt)
        session.prefill()
    before = _held()
    form = _split(loaded, capacity, k)
    form.begin()
    try:
        form.decode(session, Request(prompt, limits, Clock(loaded.staged.device), chooser))
        return _held() - before
    finally:
        form.close()


def _held() -> int:
    """Memory of this process and those it started, pages that several share in proportion."""
    return sum(proportional_bytes(p.pid) for p in [psutil.Process(), *psutil.Process().children()])


def proportional_bytes(pid: int) -> int:
    """The memory of a process, its part of shared pages alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024 * kib
