"""Landlock: files are read and written where rules say so, by whoever, root included."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ppdbench.machine import libc

# The same numbers on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, DEVICE_CONTROL = 1 << 14, 1 << 15
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_CONTROL
READ = EXECUTE | READ_FILE | READ_FOLDER
# Version 1 knew 13 rights; each of these added one.
RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 5: 16}


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Close all files and folders but these, for good; OSError where there is no Landlock."""
    version = libc.syscall(CREATE_RULESET, None, 0, ASK_VERSION)
    known = max(n for since, n in RIGHTS_SINCE.items() if since <= version)
    everything = (1 << known) - 1
    handled = ctypes.c_uint64(everything)
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        for path in readable:
            _allow(rules, path, READ)
        for path in writable:
            _allow(rules, path, everything)
        libc.set_no_new_privileges()
        libc.syscall(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        if not path.is_dir():
            rights &= OF_A_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
        libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
