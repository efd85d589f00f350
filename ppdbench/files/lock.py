"""The lock of a folder that one process writes: a second one is told, and mixes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ppdbench.errors import ConfigError

LOCK = ".lock"


@contextmanager
def written_alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, made if it is not there; refuse one that another holds."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise written_by_others(folder) from None
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}; choose --out") from error
    try:
        yield
    finally:
        lock.release()


def written_by_others(folder: Path) -> ConfigError:
    """Return the error that the second process gets."""
    return ConfigError(
        f"{folder} is being written by another process; wait for it or choose another --out"
    )
