"""The load of a machine during a measurement: other programs, and the host's theft.

Told in seconds, so that who reads adds up what was watched one after the other.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """A stretch of time on the cores that this process may use."""

    seconds: float
    cores: int
    others_s: float
    """Of all cores together, spent on other programs."""
    stolen_s: float
    """Of all cores together, taken by the host of a virtual machine."""
    load_average: float | None
    """Over the last minute, at its end: everything that ran or waited to, this run included."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for a sample, in milliseconds' precision."""
        values = asdict(self).items()
        return {n: round(v, 3) if isinstance(v, float) else v for n, v in values}


@dataclass(frozen=True, slots=True)
class _Counts:
    """Seconds since the machine and this process began."""

    clock: float
    busy: float
    stolen: float
    ours: float


class LoadMeter:
    """Measures what the machine did between its beginning and its end.

    Processes that were started from here count as ours, for as long as they live.
    """

    load: LoadSpan

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cores = _usable()

    def __enter__(self) -> LoadMeter:
        self._before = self._count()
        return self

    def __exit__(self, *error: object) -> None:
        before, now = self._before, self._count()
        busy, ours = now.busy - before.busy, now.ours - before.ours
        self.load = LoadSpan(
            now.clock - before.clock,
            len(self._cores),
            max(0.0, busy - ours),
            max(0.0, now.stolen - before.stolen),
            _average(),
        )

    def _count(self) -> _Counts:
        times = psutil.cpu_times(percpu=True)
        mine = [times[core] for core in self._cores if core < len(times)]
        return _Counts(
            time.perf_counter(),
            # Not every system tells all of these.
            sum(core.user + core.system + getattr(core, "nice", 0.0) for core in mine),
            sum(getattr(core, "steal", 0.0) for core in mine),
            self._ours(),
        )

    def _ours(self) -> float:
        total = 0.0
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += used.user + used.system
        return total


def _usable() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count() or 1))


def _average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
