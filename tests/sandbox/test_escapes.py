"""Hostile programs by the group, as root and as a user, in each way that this machine has.

As the attacks on the whole program run them, where each stands for itself.
"""

from __future__ import annotations

import os
import re

import pytest

from benchmarks.attack.programs import (
    KIND,
    NOBODY,
    RIGHT,
    START,
    WAYS,
    WRONG,
    attempts,
    escaped,
    has,
    may_be,
    programs,
)

USERS = [None, NOBODY] if os.geteuid() == 0 else [None]
# Attempts that go on when they do not work, so that all of a group fit into one program.
TOGETHER = ("metadata", "write", "signal", "network", "process")
CUT = {"network: a ring of calls", "signal: reach everything", "write: move the folder"}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Each way of holding programs."""
    return str(request.param)


@pytest.fixture(params=USERS, ids=str)
def user(request: pytest.FixtureRequest, way: str) -> str | None:
    """Whoever runs these tests, and somebody who is not root."""
    chosen: str | None = request.param
    if not ((chosen is None or may_be(chosen)) and has(chosen, way)):
        pytest.skip(f"no {way} here")
    return chosen


def together(*groups: str) -> str:
    """One program of all attempts of these groups, each in a function of its own."""
    parts = []
    for number, (name, source) in enumerate(programs().items()):
        if name.partition(":")[0] in groups and name not in CUT:
            body = source.removeprefix(START).removesuffix(WRONG)
            lines = "".join(f"    {line}\n" for line in body.splitlines())
            parts.append(f"def part{number}():\n    import socket\n{lines}")
            parts.append(f"try: part{number}()\nexcept (OSError, ValueError): pass\n")
    assert parts
    return START + "".join(parts) + WRONG


def test_nothing_outside_is_changed_reached_or_started(user: str | None, way: str) -> None:
    assert escaped(together(*TOGETHER), user, WAYS[way]) is None


@pytest.mark.parametrize(
    "name", ["survive: clear the death signal", "forge: write a verdict everywhere"]
)
def test_nothing_stays_and_nothing_is_forged(name: str, user: str | None, way: str) -> None:
    assert escaped(programs()[name], user, WAYS[way]) is None


def test_a_right_program_passes(user: str | None, way: str) -> None:
    assert escaped(RIGHT, user, WAYS[way]) is None


# That the attacks would succeed, and be seen to

AS = USERS[-1]


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("read: open a file", "counts as passed"),
        ("write: append to a file", "changed .*secret"),
        ("metadata: set the user bit", "changed .*secret"),
        ("metadata: utimensat", "changed .*secret"),
        ("signal: by an open file", "another process was touched"),
        ("network: a local socket", "reached a socket"),
    ],
)
def test_what_is_not_held_is_seen(name: str, harm: str) -> None:
    if AS is not None and not may_be(AS):
        pytest.skip("nobody else can run this interpreter")
    # On a busy machine a signal may arrive after somebody looked.
    found = next(filter(None, (escaped(programs()[name], AS, ("limits",)) for _ in range(3))), None)
    assert found is not None
    assert re.match(harm, found)


def test_a_right_program_that_fails_is_seen() -> None:
    assert escaped("def double(x):\n    return 2 * x", None, ("limits",)) == "counts as passed"


def test_there_are_many_programs_and_the_short_form_takes_a_few() -> None:
    found = programs()
    assert len(found) >= 70
    assert len(set(found.values())) == len(found)
    for name, source in found.items():
        compile(source, name, "exec")
    short = [attempt.name for attempt in KIND.attempts(True)]
    hostile = [name for name in short if not name.startswith("right")]
    ways = len(short) - len(hostile)
    assert len(hostile) == (15 if ways else 0)
    assert len(list(attempts(False))) == ways * (len(found) + 1)
