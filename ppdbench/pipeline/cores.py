"""Which processor cores a compute unit has, and how many threads it computes with."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ppdbench.bench.environment import usable_cores

Cores = tuple[int, ...]


def threads_per_unit(units: int) -> int:
    """An equal share of the threads that decoding has, or of the cores if these are fewer."""
    return max(1, min(torch.get_num_threads(), usable_cores() // units))


def share_out(units: int, threads: int) -> list[Cores]:
    """Cores for each unit; none where there are not enough to keep the units apart."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * units
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < units * threads:
        return [()] * units
    return [tuple(usable[i * threads : (i + 1) * threads]) for i in range(units)]


@contextmanager
def confined(cores: Cores, threads: int) -> Iterator[None]:
    """This process on these cores with so many threads, for a while."""
    before = torch.get_num_threads()
    usable = os.sched_getaffinity(0) if cores else ()
    torch.set_num_threads(threads)
    _move(cores)
    try:
        yield
    finally:
        _move(usable)
        torch.set_num_threads(before)


def confine(cores: Cores, threads: int) -> None:
    """The same for good: before any other thread begins."""
    torch.set_num_threads(threads)
    if cores:
        os.sched_setaffinity(0, cores)


def _move(cores: Collection[int]) -> None:
    """Every thread of this process, those of the matrix kernels included, if there are cores."""
    if not cores:
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
