"""Filters of system calls, as they are handed to the kernel."""

from __future__ import annotations

import platform

import pytest

from ppdbench.sandbox.outside import LAYERS
from ppdbench.sandbox.seccomp import ARCHITECTURES, program
from tests.sandbox.made import NO_NAMESPACES, execute, held


@pytest.mark.parametrize("machine", list(ARCHITECTURES))
def test_filters_are_whole_instructions_and_end_in_permission(machine: str) -> None:
    rules = program(machine)
    assert all(len(rule) == 8 for rule in rules)
    assert rules[-1][4:] == (0x7FFF0000).to_bytes(4, "little")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of another machine")
def test_refused_numbers_are_those_of_this_machine() -> None:
    if "seccomp" not in held(LAYERS):
        pytest.skip("this system has no seccomp")
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.socket(2, 1, 0), lambda: libc.kill(1, 0), lambda: libc.fork(),
             lambda: libc.unshare(0x10000000), lambda: libc.execv(b'/bin/true', None),
             lambda: libc.prlimit(1, 0, None, None), lambda: libc.ptrace(0, 0, 0, 0)):
    ctypes.set_errno(0)
    assert call() == -1 and ctypes.get_errno() == 1, ctypes.get_errno()
assert libc.prlimit(0, 0, None, ctypes.create_string_buffer(16)) == 0
"""
    assert execute(source, layers=NO_NAMESPACES).passed
