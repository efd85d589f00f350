"""Units that die while they are waited for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ppdbench.errors import UnitError
from ppdbench.methods.ppd.unit_group import UnitGroup


class Unit:
    """One that is there for so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def watch(self, waited_s: float) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise UnitError("unit 1 was killed by SIGKILL")


def unit_group(*units: Any) -> UnitGroup:
    made = object.__new__(UnitGroup)
    made._units, made._direct = list(units), False
    return made


def test_a_unit_that_is_killed_before_all_have_met_ends_the_wait_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(UnitError, match="killed by SIGKILL"):
        unit_group(Unit(100), Unit(1))._watched(lambda: time.sleep(60))
    assert time.monotonic() - began < 20


def test_what_the_call_gives_or_raises_comes_through() -> None:
    assert unit_group(Unit(100))._watched(lambda: 7) == 7
    with pytest.raises(ValueError, match="no group"):
        unit_group(Unit(100))._watched(lambda: (_ for _ in ()).throw(ValueError("no group")))
