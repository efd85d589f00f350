"""The size of a bucket in output positions: asked for, the task's own, or an eighth."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from ppdbench.errors import PpdbenchError
from ppdbench.runs.records import Asked, Header, probing
from ppdbench.tasks import Task, load_task


def divisors(n: int) -> list[int]:
    """The divisors of `n`, smallest first."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def default_bucket(length: int, task: Task | None) -> int:
    """The task's own bucket where outputs have its length; else, as in the paper, eight equal
    ones, or the next fewer that divide the length."""
    if task is not None and length == task.max_new_tokens:
        return task.bucket
    return next(d for d in divisors(length) if length // d <= 8)


def stored_buckets(header: Header, samples: Sequence[Asked]) -> dict[str, int]:
    """The bucket of each task of a stored run; its task files may be gone."""
    config = probing(header).config
    known = _tasks(config.tasks)
    longest: dict[str, int] = {}
    for sample in samples:
        n = len(sample.output_ids)
        longest[sample.task] = max(n, longest.get(sample.task, 1))
    found = {}
    for name, n in longest.items():
        task = known.get(name)
        length = config.max_new_tokens or (task.max_new_tokens if task else n)
        found[name] = config.bucket or default_bucket(length, task)
    return found


def _tasks(names: Sequence[str]) -> dict[str, Task]:
    found = {}
    for name in names:
        try:
            task = load_task(name)
        except PpdbenchError:
            continue
        found[task.name] = task
    return found
