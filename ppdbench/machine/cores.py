"""The processor cores of threads and compute units, and the number of a unit's threads."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch

from ppdbench.errors import ConfigError
from ppdbench.machine.environment import cores_by_thread, quota_cores, usable_cores
from ppdbench.machine.threads import threads as ours

Cores = tuple[int, ...]

PRODUCT = 512  # rows and columns, enough for all threads to take part


def threads_per_unit(units: int) -> int:
    """Return the threads of a unit: as many as of one process, if all units find cores."""
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
    """Run this process on these cores with so many threads, for a while."""
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
    """Move every thread of this process, those of the matrix kernels too, if there are cores."""
    if cores:
        _place((thread, cores) for thread in cores_by_thread())


def pin() -> None:
    """Pin each thread that computes to a core of its own, for good; only Linux lets us.

    Torch's kernels start their threads with the first product, which is how they are told from
    others: no product may have been made before. Kernels of our own find what they are to have.
    """
    threads, quota = torch.get_num_threads(), quota_cores()
    if quota is not None and quota < threads:
        raise ConfigError(
            f"--pin: the container grants {quota:g} cores' worth of time to {threads} threads; use "
            f"--threads {max(1, math.floor(quota))} or leave --pin out"
        )
    if not hasattr(os, "sched_setaffinity"):
        return
    cores, before = sorted(os.sched_getaffinity(0)), cores_by_thread().keys()
    torch.ones(PRODUCT, PRODUCT) @ torch.ones(PRODUCT, PRODUCT)
    computing = [os.getpid(), *sorted(cores_by_thread().keys() - before)]
    ours.cores = tuple(cores[:threads])  # whose threads are yet to begin
    _place((thread, (core,)) for thread, core in zip(computing, cores, strict=False))


def _place(threads: Iterable[tuple[int, Collection[int]]]) -> None:
    """Let each of these threads run on these cores."""
    for thread, cores in threads:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(thread, cores)
