"""The local files that hold a task's splits: a file, a folder of them, a split in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ppdbench.errors import ConfigError, DataError
from ppdbench.files import resources
from ppdbench.tasks.readers import READERS
from ppdbench.tasks.spec import Task, task_names

# Files that hold what a task is evaluated on; the training split is never one of them.
EVALUATION = ("test", "validation", "valid", "val", "dev", "eval")
# A piece of a split as data sets on the hub have it; older ones end in a hash.
PIECE = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(?:-[0-9a-f]{16})?")


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The file of a split, or its pieces in order."""

    split: str
    paths: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name of the file, or what the names of the pieces have in common."""
        return self.paths[0].name if len(self.paths) == 1 else f"{self.split}-*.parquet"


def data_files(task: Task, data: str, split: str | None) -> SplitFiles:
    """The local files that `data` ("builtin", a file or a folder) means for this task."""
    path = _place(task, data)
    if path.is_dir():
        return _chosen(task, path, split)
    if split is not None and split != path.stem:
        raise ConfigError(
            f"--split {split} cannot be chosen in the single file {path}; "
            "leave --split out or give the folder that holds it"
        )
    return SplitFiles(path.stem, (path,))


def has_split(task: Task, data: str, split: str) -> bool:
    """True if `data` is a folder with a file of that split."""
    place = _place(task, data)
    return place.is_dir() and any(split in splits for splits in _splits(task, place))


def stands_in(task: Task, data: str, files: SplitFiles) -> bool:
    """True if what was found in a folder is another split than the task's."""
    named = files.paths == (Path(data).expanduser(),)  # who names a file knows which it is
    return not named and files.split != task.dataset.split


def _place(task: Task, data: str) -> Path:
    """The file, or the folder that holds the task's splits."""
    path = resources.builtin_data() / task.name if data == "builtin" else Path(data).expanduser()
    if not path.exists():
        raise _no_data(task, data)
    inside = path / task.name
    return inside if inside.is_dir() else path


def _splits(task: Task, folder: Path) -> list[dict[str, list[Path]]]:
    """The files of each split of a folder, and of those in it where data sets on the hub have them.

    That is `data` and the folder of the configuration that the task names; where it names none,
    the only one that holds pieces of splits.
    """
    config = task.dataset.config
    named = ("data", *([config] if config and Path(config).name == config else ()))
    homes = [home for home in (folder, *(folder / name for name in named)) if home.is_dir()]
    if config is None and len(unnamed := _with_pieces(folder)) == 1:
        homes += unnamed
    return [splits for home in homes if (splits := _by_split(home))]


def _with_pieces(folder: Path) -> list[Path]:
    """The folders in a folder that hold pieces of splits, but for `data` and those of tasks."""
    others = {"data", *task_names()}
    found = {file.parent for file in folder.glob("*/*.parquet") if _piece(file)}
    return sorted(home for home in found if home.name not in others)


def _by_split(folder: Path) -> dict[str, list[Path]]:
    splits: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in READERS and file.is_file():
            piece = _piece(file)
            splits.setdefault(file.stem if piece is None else piece["split"], []).append(file)
    return splits


def _piece(file: Path) -> re.Match[str] | None:
    return PIECE.fullmatch(file.stem) if file.suffix.lower() == ".parquet" else None


def _chosen(task: Task, folder: Path, split: str | None) -> SplitFiles:
    wanted = split or task.dataset.split
    homes = _splits(task, folder)
    if not homes:
        if several := [home.name for home in _with_pieces(folder)]:
            raise DataError(
                f"{folder} holds data in {', '.join(several)}; give the right one as --data"
            )
        raise DataError(f"{folder} holds no data file for {task.name}; use {', '.join(READERS)}")
    splits = next((splits for splits in homes if wanted in splits), homes[0])
    if wanted not in splits and split is None:
        wanted = _only(splits) or wanted
    if wanted not in splits:
        there = ", ".join(sorted(splits))
        raise DataError(f"{folder} has no split {wanted!r}; pass --split with one of: {there}")
    return _whole(wanted, splits[wanted])


def _only(splits: dict[str, list[Path]]) -> str | None:
    """A lone split, or the only one that is there to evaluate on."""
    fit = [name for name in splits if name in EVALUATION or len(splits) == 1]
    return fit[0] if len(fit) == 1 else None


def _whole(split: str, files: list[Path]) -> SplitFiles:
    """The files of a split, of which none may be missing or too many."""
    folder, pieces = files[0].parent, [_piece(file) for file in files]
    total, *others = {None if piece is None else int(piece["total"]) for piece in pieces}
    if others or len(files) > (total or 1):
        names = ", ".join(file.name for file in files)
        raise DataError(f"{folder} holds {names}; give the path of one of them as --data")
    numbers = {int(piece["number"]) for piece in pieces if piece is not None}
    missing = [number for number in range(total or 0) if number not in numbers]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of the {total} files of the split {split!r}, first "
            f"{split}-{missing[0]:05}-of-{total:05}.parquet; get them all, or give the path of "
            "one file as --data"
        )
    return SplitFiles(split, tuple(files))


def _no_data(task: Task, data: str) -> DataError:
    if data != "builtin":
        return DataError(f"--data {data}: no such file or folder; hub, builtin or a path")
    root = resources.builtin_data()
    have = ", ".join(sorted(f.name for f in root.iterdir() if f.is_dir())) if root.is_dir() else ""
    return DataError(
        f"the task {task.name} has no builtin examples; give --data PATH (builtin has: {have})"
    )
