"""Python's own view of what a program does, refused as the kernel would refuse it.

An interpreter has ways around it, so it is no wall; it also says no to what only Python knows,
such as tracing, by which a program could step over its tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REFUSED = (
    *("socket.", "subprocess.", "ctypes.", "os.fork", "os.posix_spawn", "os.exec", "os.spawn"),
    *("os.system", "os.kill", "signal.pthread_kill", "pty.", "resource.prlimit"),
    *("sys.settrace", "sys.setprofile"),
)
# Events whose first argument is a path, or None for the working folder.
READING = ("open", "os.listdir", "os.scandir")
CHANGING = (
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.truncate"),
    *("os.link", "os.symlink", "os.utime", "os.setxattr", "os.removexattr"),
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Refuse such events in this interpreter from now on."""
    may_write = _roots(writable)
    may_read = (*_roots(readable), *may_write)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            path, _, flags = arguments
            _check(event, path, may_write if flags & WRITING else may_read)
        elif event in READING:
            _check(event, arguments[0], may_read)
        elif event in CHANGING:
            for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                _check(event, path, may_write)

    sys.addaudithook(hook)


def _roots(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(os.path.realpath(path) for path in paths)


def _check(event: str, path: Any, roots: tuple[str, ...]) -> None:
    """Refuse a path that does not lead into one of these places in the end."""
    if isinstance(path, int):
        return  # a file that is open already
    place = os.path.realpath("." if path is None else os.fsdecode(path))
    if not any(place == root or place.startswith(root.rstrip("/") + "/") for root in roots):
        raise PermissionError(f"{event} {place} is not allowed here")
