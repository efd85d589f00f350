"""A world of its own: no network, no other processes, no files but those that are shown."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ppdbench.machine import libc

NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
NEW_MOUNTS, NEW_IPC, NEW_HOST_NAME = 0x00020000, 0x08000000, 0x04000000
EVERYTHING = NEW_USER | NEW_PROCESSES | NEW_NETWORK | NEW_MOUNTS | NEW_IPC | NEW_HOST_NAME

NO_SUID_NO_DEVICES = 0x2 | 0x4
RECURSIVE_PRIVATE = 0x4000 | 0x40000
BIND = 0x1000 | 0x4000
DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

MOUNT_SETATTR, HERE, RECURSIVE = 442, -100, 0x8000
READ_ONLY, NO_SUID, NO_DEVICES = 0x1, 0x2, 0x4


def enter() -> None:
    """Go on as the first process of new namespaces; OSError where that is not allowed.

    Only a child is in a new process namespace. This process stays outside to wait for it, and
    takes it along when it is killed; when the first process of a namespace ends, so do all.
    """
    user, group = os.getuid(), os.getgid()
    libc.checked("unshare", EVERYTHING)
    _map_ids(user, group)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))
    libc.die_with_parent()


def _map_ids(user: int, group: int) -> None:
    """The same ids inside as outside; the namespaces hold without them too."""
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def new_root(readable: Iterable[Path], folder: Path, size: int) -> None:
    """Put a root in the place of the old one that has these paths alone, none to be changed.

    The folder is a small file system in memory, seen from inside alone and gone with it.
    """
    number = PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"no number of pivot_root for {os.uname().machine}")
    libc.checked("mount", b"none", b"/", None, RECURSIVE_PRIVATE, None)
    _mount_small(folder, 1 << 20)
    try:
        _furnish(readable, folder, size)
    except OSError:  # files go to a small file system all the same
        libc.checked("umount2", bytes(folder), DETACH)
        _mount_small(folder, size)
        os.chdir(folder)
        raise
    os.chdir(folder)
    libc.syscall(number, b".", b".")
    libc.checked("umount2", b".", DETACH)  # the old root, which lies over the new one
    os.chdir(folder)


def _furnish(readable: Iterable[Path], root: Path, size: int) -> None:
    """Under the new root: what may be read, and the folder at its old path."""
    for path in _outermost(readable):
        _show(path, root)
    inner = _within(root, root)
    inner.mkdir(parents=True)
    _mount_small(inner, size)
    _set(root, READ_ONLY, 0)


def _mount_small(folder: Path, size: int) -> None:
    options = f"size={size},nr_inodes=1000,mode=700".encode()
    libc.checked("mount", b"none", bytes(folder), b"tmpfs", NO_SUID_NO_DEVICES, options)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """List the paths that are there and lie within no other."""
    found = list[Path]()
    for path in sorted({path for path in paths if path.exists()}):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found


def _within(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _show(path: Path, root: Path) -> None:
    """The same file or folder, not to be changed, under the new root."""
    place = _within(root, path)
    if path.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    libc.checked("mount", bytes(path), bytes(place), None, BIND, None)
    _set(place, READ_ONLY | NO_SUID | (0 if path.is_char_device() else NO_DEVICES), RECURSIVE)


def _set(place: Path, attributes: int, how: int) -> None:
    # struct mount_attr: to set, to clear, propagation, user namespace.
    wanted = ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, 0), 32)
    libc.syscall(MOUNT_SETATTR, HERE, bytes(place), how, ctypes.byref(wanted), 32)
