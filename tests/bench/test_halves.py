"""What a machine allows two units at best, by hand and on a tiny model."""

from __future__ import annotations

import sys
from dataclasses import astuple

import pytest

from benchmarks.halves import Halves, measure
from ppdbench.engine.loading import ModelSpec, load

TINY = "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=160"


def test_the_slower_half_decides_and_a_miss_runs_the_lower_one_again() -> None:
    halves = Halves(10.0, 4.0, 4.5, 5.0, 5.0, 6.0)
    assert halves.speedup(1.0) == pytest.approx(10 / 6)
    assert halves.speedup(0.5) == pytest.approx(10 / 8)


@pytest.mark.skipif(sys.platform != "linux", reason="the other half is a copy of the process")
@pytest.mark.parametrize("k", [1, 3])
def test_both_halves_are_measured_alone_and_together(k: int) -> None:
    halves = measure(load(ModelSpec(name=TINY, device="cpu")), k, rounds=3)
    assert all(ms > 0 for ms in astuple(halves))
