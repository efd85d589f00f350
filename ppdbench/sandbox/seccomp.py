"""Seccomp: system calls that reach outside fail, whatever the program does to make them."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from ppdbench import libc

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
SECOND_ABI = 0x40000000  # where x86-64 has every call once more, under other numbers

# Filters: a machine of its own, with one register, over {number, architecture, place, arguments}.
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE = 0x00050000 | errno.EPERM
MODE_FILTER = 2


def restrict() -> None:
    """Refuse those calls from now on; OSError where the kernel or the machine is another."""
    machine = platform.machine()
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
    return [
        *rules,
        _instruction(EQUAL, PRLIMIT[column], no=3),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(EQUAL, 0, yes=1),
        _instruction(RETURN, REFUSE),
        _instruction(RETURN, ALLOW),
    ]


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
