"""The base of attacks: named attempts, each of which is survived or says why it was not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdbench.files.clean import clean

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. `run` gets an empty folder and returns why it was not survived, or None."""

    name: str
    run: Callable[[Path], str | None]


@dataclass(frozen=True, slots=True)
class AttackKind:
    """Attacks of one kind. `attempts` takes whether the short form is wanted, as CI runs it."""

    name: str
    attempts: Callable[[bool], Iterable[Attempt]]


@dataclass(frozen=True, slots=True)
class Tally:
    """The results of the attempts of one kind; `left` were not made for lack of time."""

    kind: str
    tries: int
    failures: tuple[str, ...]
    left: int
    elapsed_s: float

    @property
    def survived(self) -> int:
        """The number of attempts that did no harm."""
        return self.tries - len(self.failures)


def attack(kind: AttackKind, place: Path, *, short: bool, seconds: float) -> Tally:
    """Make the attempts of one kind, in order, until the time is up."""
    began, tries, failures = time.monotonic(), 0, list[str]()
    attempts = list(kind.attempts(short))
    for number, attempt in enumerate(attempts):
        if time.monotonic() - began > seconds:
            break
        folder = place / kind.name / f"{number:04d}"
        folder.mkdir(parents=True)
        tries += 1
        try:
            why = attempt.run(folder)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            failures.append(f"{attempt.name}: {why}")
            said(f"NOT SURVIVED {kind.name}: {failures[-1]}")
    elapsed_s = time.monotonic() - began
    left = len(attempts) - tries
    said(f"{kind.name}: {tries} tries, {len(failures)} not survived, {left} not tried")
    return Tally(kind.name, tries, tuple(failures), left, elapsed_s)


def said(line: str) -> None:
    """Say a line at once, so that what was found outlives a run that is ended early."""
    print(clean(line, "line"), file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The end of a command and what it said."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of its errors."""
        return self.err.strip().rpartition("\n")[2]


def command(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
    module: str = "ppdbench",
    place: Path | None = None,
) -> CommandEnd:
    """Run `ppdbench WORDS` in a process of its own, as a user would."""
    offline = {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    surroundings = {**os.environ, **offline, **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        errors="backslashreplace",
        stdin=subprocess.DEVNULL,
        env=surroundings,
        timeout=patience_s,
        cwd=place,
    )
    return CommandEnd(done.returncode, done.stdout, done.stderr)


def spread(attempts: Sequence[Attempt], wanted: int) -> Iterator[Attempt]:
    """Pick so many attempts, evenly spread over all: what the short form takes."""
    wanted = min(wanted, len(attempts))
    return (attempts[number * len(attempts) // wanted] for number in range(wanted))
