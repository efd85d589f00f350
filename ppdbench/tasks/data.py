"""The sources of a task's rows: the hub, the package, a file or a folder."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks.columns import decode_cells
from ppdbench.tasks.readers import read_rows
from ppdbench.tasks.spec import Task
from ppdbench.tasks.splits import data_files, has_split

Placed = tuple[dict[str, object], Path | None]  # a row, and its file
SHOT_POOL_ROWS = 1000  # enough to draw from; a whole training split can fill the memory


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data set; `number` counts from 0 within its split, `file` is where it stands."""

    number: int
    columns: dict[str, object]
    file: Path | None = None

    @property
    def place(self) -> str:
        """The place to look for it."""
        return f"row {self.number}" + (f" of {self.file}" if self.file is not None else "")


def load_rows(
    task: Task,
    data: str,
    *,
    split: str | None,
    limit: int | None,
    offline: bool,
    seed: int | None = None,
) -> list[Row]:
    """The first `limit` rows of a split, or with `seed` a random `limit` in file order."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}, but at least 1 example is needed; leave it out for all")
    if data == "hub":
        found = _hub_rows(task, split or task.dataset.split, offline)
        rows: Iterator[Placed] = ((columns, None) for columns in found)
    else:
        rows = _local_rows(task, data_files(task, data, split).paths)
    numbered = (Row(number, columns, file) for number, (columns, file) in enumerate(rows))
    if seed is None or limit is None:
        return list(islice(numbered, None if limit is None else min(limit, sys.maxsize)))
    return _sample(list(numbered), limit, seed)


def load_shot_rows(task: Task, data: str, *, split: str | None, offline: bool) -> list[Row]:
    """The pool of worked examples: the head of the training split where the data has one."""
    if task.shots_split is not None and _has_split(task, data, task.shots_split):
        split = task.shots_split
    return load_rows(task, data, split=split, limit=SHOT_POOL_ROWS, offline=offline)


def _has_split(task: Task, data: str, split: str) -> bool:
    return data == "hub" or has_split(task, data, split)


def _local_rows(task: Task, paths: Iterable[Path]) -> Iterator[Placed]:
    for path in paths:
        is_csv = path.suffix.lower() == ".csv"
        rows = decode_cells(_FileRows(path), task) if is_csv else read_rows(path)
        yield from ((columns, path) for columns in rows)


@dataclass(frozen=True, slots=True)
class _FileRows:
    """The rows of a file, read anew each time, so that not all are held at once."""

    path: Path

    def __iter__(self) -> Iterator[dict[str, object]]:
        return read_rows(self.path)


def _hub_rows(task: Task, split: str, offline: bool) -> Iterator[dict[str, object]]:
    source = task.dataset
    if source.hub_id is None:
        obtain = f" ({source.obtain})" if source.obtain else ""
        raise DataError(f"the task {task.name} has no hub data set; give --data PATH{obtain}")
    way_out = "give --data PATH (a file with the same columns) or --data builtin"
    if offline and source.streaming:
        raise DataError(f"--offline: {source.hub_id} is read over the network; {way_out}")
    import datasets

    try:
        with _hub_offline(datasets, offline):
            rows: Iterable[Any] = datasets.load_dataset(
                source.hub_id, source.config, split=split, streaming=source.streaming
            )
            yield from rows
    # The hub client raises errors of four libraries that share no base but Exception.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        state = "not in the local cache (--offline)" if offline else "cannot be loaded"
        raise DataError(
            f"{source.hub_id}, split {split}: {state}: {reason:.200}; {way_out}"
        ) from error


@contextmanager
def _hub_offline(datasets: Any, offline: bool) -> Iterator[None]:
    """Let the library, with `offline`, read its cache and nothing else."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _sample(rows: list[Row], limit: int, seed: int) -> list[Row]:
    chosen = random.Random(seed).sample(range(len(rows)), min(limit, len(rows)))
    return [rows[index] for index in sorted(chosen)]
