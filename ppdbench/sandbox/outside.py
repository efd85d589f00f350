"""Starting a program in the sandbox, watching it from outside, ending it whatever it does."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any, Literal

from ppdbench.errors import ConfigError
from ppdbench.resources import PACKAGE

Outcome = Literal[
    "passed", "failed", "timed out", "out of memory", "too much output", "ended early"
]
LAYERS = ("namespaces", "limits", "landlock", "seccomp", "audit hook")
MOST_REPORTED = 1 << 14
START_S = 60.0  # enough for an interpreter on a machine that has much else to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use; a test of HumanEval needs a hundredth of it."""

    cpu_s: int = 5  # decides on a loaded machine as on an idle one, which wall time would not
    wall_s: float = 20.0
    memory_bytes: int = 1 << 30  # of address space
    file_bytes: int = 1 << 20
    folder_bytes: int = 16 << 20
    open_files: int = 32
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Execution:
    """How a program ended, what it raised, and which layers held it."""

    outcome: Outcome
    protection: tuple[str, ...]
    raised: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it came to its end without an error."""
        return self.outcome == "passed"


DEFAULT = Limits()


def execute(program: str, limits: Limits = DEFAULT, *, layers: Sequence[str] = LAYERS) -> Execution:
    """Run Python source where it can do no harm; `passed` where it ran to its end."""
    secret = secrets.token_hex(16)
    task = {"program": program, "limits": asdict(limits), "layers": list(layers)}
    job = f"{json.dumps(task)}\n{secret}\n".encode()
    with TemporaryDirectory(prefix="ppdbench-", ignore_cleanup_errors=True) as folder:
        process, report = _start(folder)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(job)  # type: ignore[union-attr]
                process.stdin.close()  # type: ignore[union-attr]
            watched = _watch(process, report, limits)
        finally:
            cpu_s = _end(process)
            os.close(report)
    return _judged(watched, secret, cpu_s >= 0.9 * limits.cpu_s)


def _start(folder: str) -> tuple[subprocess.Popen[bytes], int]:
    """The process, in a session and group of its own, and the pipe of its verdict."""
    report, inner = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-s", "-B", "-m", "ppdbench.sandbox.inside", str(inner)],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=(inner,),
            start_new_session=True,
        )
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(inner)
    return process, report


def _environment(folder: str) -> dict[str, str]:
    """Nothing of ours but what the interpreter may need to start; sets in the same order."""
    needed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return needed | {
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONHASHSEED": "0",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads, which it may not
    }


@dataclass(slots=True)
class _Watched:
    limits: Limits
    report: bytearray
    output: bytearray
    deadline: float
    began: bool = False
    stopped: Outcome | None = None  # why it was not let go on

    @property
    def reported(self) -> bool:
        return self.report.count(b"\n") >= 2

    def judge(self) -> None:
        """Start the program's own clock when its sandbox is closed; stop it at a limit."""
        now = time.monotonic()
        if not self.began and b"\n" in self.report:
            self.began, self.deadline = True, now + self.limits.wall_s
        if now >= self.deadline:
            self.stopped = "timed out"
        elif len(self.output) > self.limits.output_bytes or len(self.report) > MOST_REPORTED:
            self.stopped = "too much output"


def _watch(process: subprocess.Popen[bytes], report: int, limits: Limits) -> _Watched:
    """Read what comes until the verdict, the end of both pipes, or a limit."""
    assert process.stdout is not None
    watched = _Watched(limits, bytearray(), bytearray(), time.monotonic() + START_S)
    with selectors.DefaultSelector() as pipes:
        pipes.register(report, selectors.EVENT_READ, watched.report)
        pipes.register(process.stdout, selectors.EVENT_READ, watched.output)
        while pipes.get_map() and not watched.reported and watched.stopped is None:
            for key, _ in pipes.select(max(0.0, watched.deadline - time.monotonic())):
                data = os.read(key.fd, 1 << 14)
                key.data.extend(data)
                if not data:
                    pipes.unregister(key.fileobj)
            watched.judge()
    return watched


def _end(process: subprocess.Popen[bytes]) -> float:
    """Kill the whole group, wait, and the processor time that it took together."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return used.ru_utime + used.ru_stime


def _judged(watched: _Watched, secret: str, used_up: bool) -> Execution:
    first, _, rest = bytes(watched.report).partition(b"\n")
    began = _parsed(first)
    if "protection" not in began:
        said = bytes(watched.output).decode("utf-8", "replace").strip().splitlines()
        raise ConfigError(
            f"the sandbox for generated code does not start here ({said[-1] if said else 'no word'}"
            "); leave --allow-code-execution out"
        )
    held = tuple(began["protection"])
    if watched.stopped is not None:
        return Execution(watched.stopped, held)
    # From here on the program may have had its hands in what is read.
    verdict = _parsed(rest.partition(b"\n")[0])
    match verdict.get("outcome"):
        case "passed" if verdict.get("secret") == secret:
            return Execution("passed", held)
        case "failed":
            return Execution("failed", held, _name(verdict.get("raised")))
        case "out of memory":
            return Execution("out of memory", held)
    return Execution("timed out" if used_up else "ended early", held)


def _name(raised: object) -> str | None:
    """What may be stored and shown: a plain name."""
    return raised[:80] if isinstance(raised, str) and raised.isidentifier() else None


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
