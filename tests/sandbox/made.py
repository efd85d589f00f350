"""Programs in the sandbox, as tests of it start them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import psutil

from ppdbench.sandbox import outside
from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.outside import LAYERS, Execution
from ppdbench.sandbox.process import SandboxLimits

QUICK = SandboxLimits(cpu_s=1, wall_s=10)
WRAPPED = ("bubblewrap", "limits", "landlock", "seccomp", "audit hook")
BARE = LAYERS[1:]
NO_NAMESPACES = ("limits", "landlock", "seccomp")
LEAST = ("limits", "audit hook")


def execute(
    program: str,
    limits: SandboxLimits = outside.DEFAULT,
    exam: Exam = outside.NO_EXAM,
    *,
    layers: Sequence[str] = LAYERS,
) -> Execution:
    """Where not everything is held too: what is left is what these tests look at."""
    return outside.execute(program, exam, limits, layers=layers, unprotected=True)


@functools.cache
def held(layers: tuple[str, ...]) -> set[str]:
    """Those of them that this system has."""
    return set(execute("", layers=layers).protection)


def children() -> set[int]:
    """Processes below this one, those included that ended and nobody asked after."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def refused(found: Execution) -> bool:
    return found.outcome == "failed" and found.raised in ("PermissionError", "OSError")
