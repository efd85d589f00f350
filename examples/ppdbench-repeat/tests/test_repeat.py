"""Repeat proposes what followed last time, and puts out exactly what greedy decoding does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ppdbench.testing import exactness_tests
from ppdbench_repeat.repeat import RepeatProposer

TestRepeat = exactness_tests("repeat", max_draft=2)


def proposed(tokens: list[int]) -> tuple[int, ...]:
    session: Any = SimpleNamespace(tokens=tokens)
    return tuple(RepeatProposer(2).propose(session, 9).tokens)


def test_it_proposes_what_followed_the_newest_token_last_time() -> None:
    assert proposed([5, 1, 2, 3, 5, 7, 8, 9, 5]) == (7, 8)
    assert proposed([5, 6, 5]) == (6, 5)
    assert proposed([1, 2, 3]) == ()
