"""The processes of the sandbox: one locks itself in and works, one keeps it.

`python -m ppdbench.sandbox.inside ROLE REPORT INLET OUTLET` reads its job, JSON, from standard
input. The program and its tests each have such a pair, and the two wires between them. To
REPORT goes which layers are in force, then the verdict if the tests run here, and at last, from
the keeper, how much processor time it took: none of it is said by a process that runs the
program.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ppdbench.machine import libc
from ppdbench.sandbox import audit, candidate, examiner, landlock, namespaces, places, seccomp
from ppdbench.sandbox.coverage import unheld
from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.wire import Wire

Steps = dict[str, Callable[[], None]]


def main() -> None:
    """One job from start to end."""
    role = sys.argv[1]
    report, inlet, outlet = map(int, sys.argv[2:])
    job = json.loads(_taken(0))
    _put_aside(0)
    with suppress(OSError):
        libc.die_with_parent()
        libc.adopt_orphans()
    held = confine_program(Path.cwd(), job, lambda worker: _keep(worker, report))
    missing = [] if job["unprotected"] else unheld(held)
    _say(report, {"protection": held, "unheld": missing})
    if missing:
        os._exit(0)
    wire = Wire(inlet, outlet)
    if role == "program":
        os.close(report)  # what is said from here on is the program's word
        candidate.answer_calls(job["program"], wire)
    else:
        _say(report, examiner.examine(Exam(**job["exam"]), wire))
    os._exit(0)  # no more of the program: no handlers at exit, no threads to wait for


def _taken(standard_input: int) -> bytes:
    """Read all that is asked for on standard input."""
    read = bytearray()
    while data := os.read(standard_input, 1 << 16):
        read += data
    return bytes(read)


def _put_aside(standard_input: int) -> None:
    """Put standard input aside: whoever reads it from now on gets nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, standard_input)
    os.close(nothing)


def _say(report: int, what: dict[str, Any]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def confine_program(
    folder: Path, job: dict[str, Any], keep: Callable[[int], NoReturn]
) -> list[str]:
    """Put on every layer of the job that this system has; the names of those in force.

    Goes on in a new process; the one that came here keeps it.
    """
    limits, wanted = job["limits"], job["layers"]
    python, readable = places.python(), places.readable()
    writable = [folder, Path(os.devnull)]
    sys.path[:] = [entry for entry in sys.path if any(map(Path(entry).is_relative_to, python))]
    apart: Steps = {
        "namespaces": namespaces.enter,
        "own root": lambda: namespaces.new_root(readable, folder, limits["folder_bytes"]),
    }
    closed: Steps = {
        "limits": lambda: _limit(limits),
        "landlock": lambda: landlock.restrict(readable, writable),
        "seccomp": seccomp.restrict,
        # Last: it refuses what the others need.
        "audit hook": lambda: audit.restrict(readable, writable),
    }
    held = [*job["held"], *_put_on(apart, wanted)]
    worker = os.fork()
    if worker:
        keep(worker)
    with suppress(OSError):
        libc.die_with_parent()
    return held + _put_on(closed, wanted)


def _put_on(steps: Steps, wanted: Sequence[str]) -> list[str]:
    return [name for name, step in steps.items() if name in wanted and _works(step)]


def _works(put_on: Callable[[], None]) -> bool:
    try:
        put_on()
    except (OSError, ValueError):  # not here, or not as much as asked
        return False
    return True


def _keep(worker: int, report: int) -> NoReturn:
    """Wait for the end, let nothing go on after it, and say what it took."""
    _, _, used = os.wait4(worker, 0)
    _end_orphans()
    with suppress(OSError):
        _say(report, {"cpu_s": used.ru_utime + used.ru_stime})
    os._exit(0)


def _end_orphans() -> None:
    """End what the worker left behind: its processes fall to this one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):  # none is left, or there is no way to see them
        while left := children.read_text().split():
            for child in map(int, left):
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _limit(limits: dict[str, int]) -> None:
    """Bounds that cannot be raised again; root's rights, which lift some of them, go too."""
    for what, most in {
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }.items():
        _, highest = resource.getrlimit(what)
        bound = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(what, (bound, bound))
    with suppress(OSError):
        libc.drop_capabilities()


if __name__ == "__main__":
    main()
