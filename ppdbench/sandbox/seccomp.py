"""Seccomp: system calls that reach outside fail, whatever the program does to make them."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from ppdbench.machine import libc

# What each machine calls itself to the kernel, and its numbers of the calls that are refused.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "kill": (62, 129),
    "semget": (64, 190),
    "msgget": (68, 186),
    "shmget": (29, 194),
    "ptrace": (101, 117),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    # Modes, owners, times and attributes of files: Landlock does not know them.
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "mknod": (133, None),
    "mknodat": (259, 33),
    # Ways to live on, or as somebody else.
    "prctl": (157, 167),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setgroups": (116, 159),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "capset": (126, 91),
    "personality": (135, 92),
    "fanotify_init": (300, 262),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "tkill": (200, 130),
    "sched_setaffinity": (203, 122),
    "rt_sigqueueinfo": (129, 138),
    "tgkill": (234, 131),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "rt_tgsigqueueinfo": (297, 240),
    "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "sched_setattr": (314, 274),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
}
PRLIMIT = (302, 261)  # harmless on oneself; on another process it can end that
# Of these two, what Python's own files need. With the rest an open file sends any signal to any
# process, and a file that may only be read gets other attributes.
FCNTL, IOCTL = (72, 25), (16, 29)
# F_DUPFD to F_SETLKW, F_GETOWN, locks of open files, F_DUPFD_CLOEXEC, F_GETPIPE_SZ.
OF_FCNTL = (*range(8), 9, 36, 37, 38, 1030, 1032)
# TCGETS (is it a terminal?), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
OF_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
SECOND_ABI = 0x40000000  # where x86-64 has every call once more, under other numbers

# Filters: a machine of its own, with one register, over {number, architecture, place, arguments}.
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE = 0x00050000 | errno.EPERM
MODE_FILTER = 2


def restrict() -> None:
    """Refuse those calls from now on; OSError where the kernel or the machine is another."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no seccomp rules for {machine}")
    rules = program(machine)
    buffer = ctypes.create_string_buffer(b"".join(rules))
    # struct sock_fprog: the number of instructions, padding, where they are.
    head = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(buffer)))
    libc.set_no_new_privileges()
    libc.prctl(libc.PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(head))


def program(machine: str) -> list[bytes]:
    """The filter: one instruction each, jumps counted from the next one."""
    column = list(ARCHITECTURES).index(machine)
    numbers = [pair[column] for pair in REFUSED.values()]
    rules = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(EQUAL, ARCHITECTURES[machine], yes=1),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER),
        _instruction(AT_LEAST, SECOND_ABI, no=1),
        _instruction(RETURN, REFUSE),
    ]
    for number in numbers:
        if number is not None:
            rules += [_instruction(EQUAL, number, no=1), _instruction(RETURN, REFUSE)]
    for call, values in ((FCNTL, OF_FCNTL), (IOCTL, OF_IOCTL)):
        rules += _only_second(call[column], values)
    return [
        *rules,
        _instruction(EQUAL, PRLIMIT[column], no=3),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(EQUAL, 0, yes=1),
        _instruction(RETURN, REFUSE),
        _instruction(RETURN, ALLOW),
    ]


def _only_second(number: int, values: Sequence[int]) -> list[bytes]:
    """Allow this call where its second argument is one of these, refuse it where it is not."""
    inner = [
        _instruction(LOAD, SECOND_ARGUMENT),
        *(_instruction(EQUAL, value, yes=len(values) - at) for at, value in enumerate(values)),
        _instruction(RETURN, REFUSE),
        _instruction(RETURN, ALLOW),
    ]
    return [_instruction(EQUAL, number, no=len(inner)), *inner]


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
