"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


def checked(name: str, *arguments: Any) -> int:
    """Call a function of the C library; OSError where it fails or is not there."""
    function = getattr(_LIBC, name, None)
    if function is None:
        raise OSError(f"this system has no {name}")
    function.restype = ctypes.c_long
    result: int = function(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: Any) -> int:
    """A system call by its number; whole numbers are passed as they are, 64 bits wide."""
    if sys.platform != "linux":
        raise OSError("system calls have these numbers on Linux alone")
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked("syscall", ctypes.c_long(number), *wide)


def prctl(option: int, *arguments: Any) -> int:
    """Change something about this process."""
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    wide += [ctypes.c_ulong(0)] * (4 - len(wide))
    return checked("prctl", ctypes.c_int(option), *wide)


def advise(address: int, size: int, advice: int) -> None:
    """Tell the kernel how this memory is used; both numbers must be those of whole pages."""
    checked("madvise", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice))


def set_no_new_privileges() -> None:
    """Let no program started from here gain rights; without this the kernel takes no rules."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up what root has, or what a user namespace gives to whoever made it."""
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    checked("capset", version_3, none)


def die_with_parent() -> None:
    """Be killed when the process that started this one ends, however it ends."""
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def adopt_orphans() -> None:
    """Be the parent of whatever processes below this one lose theirs."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
