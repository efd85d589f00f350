"""A world of its own: no network, no other processes, a small file system to write in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ppdbench import libc

NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
NEW_MOUNTS, NEW_IPC, NEW_HOST_NAME = 0x00020000, 0x08000000, 0x04000000
EVERYTHING = NEW_USER | NEW_PROCESSES | NEW_NETWORK | NEW_MOUNTS | NEW_IPC | NEW_HOST_NAME

NO_SUID_NO_DEVICES = 0x2 | 0x4
RECURSIVE_PRIVATE = 0x4000 | 0x40000


def enter(folder: Path, folder_bytes: int) -> None:
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
    with suppress(OSError):  # then files go to the folder itself, which is as empty
        _mount_small(folder, folder_bytes)


def _map_ids(user: int, group: int) -> None:
    """The same ids inside as outside; the namespaces hold without them too."""
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount_small(folder: Path, size: int) -> None:
    """A file system in memory over the folder, seen from inside alone and gone with it."""
    libc.checked("mount", b"none", b"/", None, RECURSIVE_PRIVATE, None)
    options = f"size={size},nr_inodes=1000,mode=700".encode()
    libc.checked("mount", b"none", bytes(folder), b"tmpfs", NO_SUID_NO_DEVICES, options)
    os.chdir(folder)
