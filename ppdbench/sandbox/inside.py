"""The process in which a program runs: it locks itself in, runs it, and says how it went.

`python -m ppdbench.sandbox.inside REPORT` reads a job from standard input: a line of JSON and a
line with a secret. A verdict of `passed` must show the secret, which is read only when the
program has come to its end, so that leaving early, in whatever way, is no success.
"""

from __future__ import annotations

import json
import os
import resource
import site
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdbench import libc
from ppdbench.sandbox import audit, landlock, namespaces, seccomp

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/urandom")


def main() -> None:
    """One job from start to end."""
    report = int(sys.argv[1])
    job = _take_over(0)
    asked = json.loads(_line(job))
    _say(report, {"protection": confine(Path.cwd(), asked["limits"], asked["layers"])})
    verdict = run(asked["program"])
    if verdict["outcome"] == "passed":
        verdict["secret"] = _line(job)
    _say(report, verdict)
    os._exit(0)  # no more of the program: no handlers at exit, no threads to wait for


def _take_over(standard_input: int) -> int:
    """The pipe under another number; who reads standard input from now on gets nothing."""
    pipe, nothing = os.dup(standard_input), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, standard_input)
    os.close(nothing)
    return pipe


def _line(pipe: int) -> str:
    """Up to the next newline, byte by byte: what comes after it is for later."""
    read = bytearray()
    while (byte := os.read(pipe, 1)) not in (b"", b"\n"):
        read += byte
    return read.decode()


def _say(report: int, what: dict[str, Any]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def confine(folder: Path, limits: dict[str, int], layers: list[str]) -> list[str]:
    """Put on every layer of `layers` that this system has; the names of those in force."""
    python = _where_python_lies()
    readable = [*python, *map(Path, (*LIBRARIES, *DEVICES))]
    writable = [folder, Path(os.devnull)]
    sys.path[:] = [entry for entry in sys.path if any(map(Path(entry).is_relative_to, python))]
    steps: dict[str, Callable[[], None]] = {
        "namespaces": lambda: namespaces.enter(folder, limits["folder_bytes"]),
        "limits": lambda: _limit(limits),
        "landlock": lambda: landlock.restrict(readable, writable),
        "seccomp": seccomp.restrict,
        # Last: it refuses what the others need.
        "audit hook": lambda: audit.restrict(readable, writable),
    }
    with suppress(OSError):
        libc.die_with_parent()
    return [name for name, put_on in steps.items() if name in layers and _works(put_on)]


def _works(put_on: Callable[[], None]) -> bool:
    try:
        put_on()
    except (OSError, ValueError):  # not here, or not as much as asked
        return False
    return True


def _where_python_lies() -> list[Path]:
    """The standard library and installed packages, not what a checkout adds to the path."""
    libraries = sysconfig.get_config_var("LIBDIR")
    return [
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
        *map(Path, site.getsitepackages()),
        *([Path(libraries)] if libraries else []),
    ]


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


def run(program: str) -> dict[str, Any]:
    """Run it to its end, and what it ended with."""
    try:
        # As HumanEval's own harness does it: no __name__, nothing but builtins.
        exec(compile(program, "<program>", "exec"), {})
    except MemoryError:
        return {"outcome": "out of memory"}
    except BaseException as error:  # SystemExit, too, is no way to the end
        return {"outcome": "failed", "raised": type(error).__name__}
    return {"outcome": "passed"}


if __name__ == "__main__":
    main()
