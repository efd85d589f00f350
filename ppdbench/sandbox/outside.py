"""Starting a program and its tests in the sandbox, watching both from outside, ending both."""

from __future__ import annotations

import functools
import os
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from ppdbench.errors import ConfigError
from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.process import SandboxLimits, SandboxProcess, SandboxSettings

ProgramOutcome = Literal[
    "passed",
    "failed",
    "timed out",
    "out of memory",
    "too much output",
    "ended early",
    "not judged",
]
LAYERS = ("bubblewrap", "namespaces", "own root", "limits", "landlock", "seccomp", "audit hook")
START_S = 60.0  # enough for an interpreter on a machine that has much else to do
LAST_WORD_S = 2.0
LOOK_S = 0.05
NO_EXAM = Exam()
DEFAULT = SandboxLimits()


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of a program or its tests, what was raised, and which layers held it."""

    outcome: ProgramOutcome
    protection: tuple[str, ...]
    raised: str | None = None

    @property
    def passed(self) -> bool:
        """True if its tests ran to their end without an error."""
        return self.outcome == "passed"


def execute(
    program: str,
    exam: Exam = NO_EXAM,
    limits: SandboxLimits = DEFAULT,
    *,
    layers: Sequence[str] = LAYERS,
    unprotected: bool = False,
) -> Execution:
    """Run Python source where it can do no harm, and its tests where it cannot reach them.

    `passed` is the word of the process that runs the tests; without tests it is the program's
    own, that it came to its end. Where no layer holds a harm nothing runs, unless `unprotected`.
    """
    settings = SandboxSettings(limits, tuple(layers), unprotected)
    with _children(program, exam, settings) as (candidate, tests):
        stopped = _watch(candidate, tests, limits)
        return _judged(candidate, tests, stopped, limits)


@functools.cache
def check_held() -> None:
    """ConfigError where this system cannot hold a program; it is asked once."""
    execute("")


@contextmanager
def _children(
    program: str, exam: Exam, settings: SandboxSettings
) -> Iterator[tuple[SandboxProcess, SandboxProcess]]:
    """The process of the program and that of its tests; both are gone afterwards."""
    asked, answered = os.pipe(), os.pipe()
    started = list[SandboxProcess]()
    try:
        try:
            started.append(
                SandboxProcess("program", {"program": program}, (asked[0], answered[1]), settings)
            )
            started.append(
                SandboxProcess("tests", {"exam": exam._asdict()}, (answered[0], asked[1]), settings)
            )
        finally:
            for end in (*asked, *answered):
                os.close(end)
        yield started[0], started[1]
    finally:
        for child in started:
            child.end()


@dataclass(slots=True)
class _Watch:
    """The state of both processes while they are at work."""

    candidate: SandboxProcess
    tests: SandboxProcess
    limits: SandboxLimits
    deadline: float
    began: bool = False
    leaving: bool = False  # there is a verdict, that the program has gone

    def over(self) -> bool:
        """True if there is nothing more to wait for."""
        verdict = self.tests.told("outcome").get("outcome")
        if verdict != "ended early":
            return bool(verdict or self.tests.told("cpu_s"))
        if not self.leaving:  # its keeper says in a moment what it died of
            self.leaving, self.deadline = True, time.monotonic() + LAST_WORD_S
        return bool(self.candidate.told("cpu_s")) or time.monotonic() >= self.deadline

    def stopped(self) -> ProgramOutcome | None:
        """The limit that is reached; the program's clock starts once both are locked in."""
        if not self.began and self.candidate.began and self.tests.began:
            self.began, self.deadline = True, time.monotonic() + self.limits.wall_s
        if self.candidate.overfull() or self.tests.overfull():
            return "too much output"
        return "timed out" if time.monotonic() >= self.deadline else None


def _watch(
    candidate: SandboxProcess, tests: SandboxProcess, limits: SandboxLimits
) -> ProgramOutcome | None:
    """Read what comes until there is a verdict, both have ended, or a limit is reached."""
    watch = _Watch(candidate, tests, limits, time.monotonic() + START_S)
    with selectors.DefaultSelector() as pipes:
        for child in (candidate, tests):
            assert child.process.stdout is not None
            pipes.register(child.report, selectors.EVENT_READ, child.said)
            pipes.register(child.process.stdout, selectors.EVENT_READ, child.output)
        while pipes.get_map():
            left = watch.deadline - time.monotonic()
            for key, _ in pipes.select(max(0.0, min(LOOK_S, left))):
                data = os.read(key.fd, 1 << 14)
                key.data.extend(data)
                if not data:
                    pipes.unregister(key.fileobj)
            if watch.over():
                return None
            if stopped := watch.stopped():
                return stopped
    return None


def _judged(
    candidate: SandboxProcess,
    tests: SandboxProcess,
    stopped: ProgramOutcome | None,
    limits: SandboxLimits,
) -> Execution:
    children = (candidate, tests)
    for unheld in (child.told("unheld").get("unheld") for child in children):
        if unheld:
            raise ConfigError(
                f"generated programs are not run: nothing here holds {'; '.join(unheld)}; install "
                "bubblewrap, use a newer Linux, or take the risk with "
                "--allow-code-execution=unprotected"
            )
    for child in children:
        if not child.began:
            raise ConfigError(
                f"the sandbox for generated code does not start here ({child.last_line()}); "
                "leave --allow-code-execution out"
            )
    if stopped is not None:
        return Execution(stopped, candidate.held)
    verdict = tests.told("outcome")
    outcome = verdict.get("outcome", "ended early")
    assert outcome in get_args(ProgramOutcome)
    if outcome == "ended early" and max(candidate.cpu_s, tests.cpu_s) >= 0.9 * limits.cpu_s:
        outcome = "timed out"
    return Execution(outcome, candidate.held, _name(verdict.get("raised")))


def _name(raised: object) -> str | None:
    """Return a name that may be stored and shown: a plain one."""
    return raised[:80] if isinstance(raised, str) and raised.isidentifier() else None
