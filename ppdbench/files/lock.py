"""The lock of a folder that one process writes: a second one is told, and mixes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ppdbench.errors import ConfigError

LOCK = ".lock"


def hold(folder: Path, option: str, *, by_process: bool = False) -> FileLock:
    """Take the lock of a folder, made if it is not there; refuse one that another holds.

    It is held until it is released, or until nothing refers to it. With `by_process` all of a
    process hold it together. `option` is the one that chooses another folder.
    """
    lock = FileLock(folder / LOCK, timeout=0, is_singleton=by_process)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise written_by_others(folder, option) from None
    except OSError as error:
        raise unwritable(folder, error, option) from error
    return lock


@contextmanager
def written_alone(folder: Path) -> Iterator[None]:
    """Hold the lock of an `--out` as long as it is written."""
    lock = hold(folder, "--out")
    try:
        yield
    finally:
        lock.release()


def written_by_others(folder: Path, option: str = "--out") -> ConfigError:
    """Return the error that the second process gets."""
    return ConfigError(
        f"{folder} is being written by another process; wait for it or choose another {option}"
    )


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Say, where something cannot be written to an `--out`, which folder that is."""
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError, option: str = "--out") -> ConfigError:
    """Return the error for a folder that nothing can be written to."""
    why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
    return ConfigError(f"cannot write to {folder}: {why}; choose another {option}")
