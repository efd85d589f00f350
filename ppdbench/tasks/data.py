"""The sources of a task's rows: the hub, the package, a file or a folder."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ppdbench.errors import ConfigError, DataError
from ppdbench.files import resources
from ppdbench.tasks.columns import decode_cells
from ppdbench.tasks.readers import READERS, read_rows
from ppdbench.tasks.spec import Task

# Files that hold what a task is evaluated on; the training split is never one of them.
EVALUATION = ("test", "validation", "valid", "val", "dev", "eval")
SHOT_POOL_ROWS = 1000  # enough to draw from; a whole training split can fill the memory


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data set; `number` counts from 0 within its split."""

    number: int
    columns: dict[str, object]


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
        rows = _hub_rows(task, split or task.dataset.split, offline)
    else:
        rows = _local_rows(task, data_file(task, data, split))
    numbered = (Row(number, columns) for number, columns in enumerate(rows))
    if seed is None or limit is None:
        return list(islice(numbered, limit))
    return _sample(list(numbered), limit, seed)


def load_shot_rows(task: Task, data: str, *, split: str | None, offline: bool) -> list[Row]:
    """The pool of worked examples: the head of the training split where the data has one."""
    if task.shots_split is not None and _has_split(task, data, task.shots_split):
        split = task.shots_split
    return load_rows(task, data, split=split, limit=SHOT_POOL_ROWS, offline=offline)


def data_file(task: Task, data: str, split: str | None) -> Path:
    """The local file that `data` ("builtin", a file or a folder) means for this task."""
    path = _place(task, data)
    if path.is_dir():
        return _split_file(task, path, split)
    if split is not None and split != path.stem:
        raise ConfigError(
            f"--split {split} cannot be chosen in the single file {path}; "
            "leave --split out or give the folder that holds it"
        )
    return path


def _place(task: Task, data: str) -> Path:
    """The file, or the folder that holds the task's splits."""
    path = resources.builtin_data() / task.name if data == "builtin" else Path(data).expanduser()
    if not path.exists():
        raise _no_data(task, data)
    inside = path / task.name
    return inside if inside.is_dir() else path


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in READERS and f.is_file())


def _split_file(task: Task, folder: Path, split: str | None) -> Path:
    files = _files(folder)
    wanted = split or task.dataset.split
    named = [file for file in files if file.stem == wanted]
    if len(named) > 1:
        names = ", ".join(file.name for file in named)
        raise DataError(f"{folder} holds {names}; give the path of one of them as --data")
    if named:
        return named[0]
    if split is None and (only := _unambiguous(files)):
        return only
    if not files:
        raise DataError(f"{folder} holds no data file for {task.name}; use {', '.join(READERS)}")
    there = ", ".join(sorted({file.stem for file in files}))
    raise DataError(f"{folder} has no split {wanted!r}; pass --split with one of: {there}")


def _unambiguous(files: list[Path]) -> Path | None:
    """A lone file, or the only one that is there to evaluate on."""
    if len(files) == 1:
        return files[0]
    fit = [file for file in files if file.stem in EVALUATION]
    return fit[0] if len(fit) == 1 else None


def stands_in(task: Task, data: str, file: Path) -> bool:
    """True if a file was found in a folder that has another evaluation split than the task's."""
    found = file != Path(data).expanduser()
    return found and file.stem in EVALUATION and file.stem != task.dataset.split


def _no_data(task: Task, data: str) -> DataError:
    if data != "builtin":
        return DataError(f"--data {data}: no such file or folder; hub, builtin or a path")
    root = resources.builtin_data()
    have = ", ".join(sorted(f.name for f in root.iterdir() if f.is_dir())) if root.is_dir() else ""
    return DataError(
        f"the task {task.name} has no builtin examples; give --data PATH (builtin has: {have})"
    )


def _has_split(task: Task, data: str, split: str) -> bool:
    if data == "hub":
        return True
    place = _place(task, data)
    return place.is_dir() and any(file.stem == split for file in _files(place))


def _local_rows(task: Task, path: Path) -> Iterator[dict[str, object]]:
    rows = read_rows(path)
    if path.suffix.lower() == ".csv":
        return (decode_cells(row, task) for row in rows)
    return rows


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
