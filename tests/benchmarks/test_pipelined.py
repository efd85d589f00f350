"""What two units could gain at best, and where a gain that was promised went."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields

import pytest

from benchmarks import halves
from benchmarks.halves import Halves, measure
from benchmarks.pipelined import LOST, halves_sheet, lost
from ppdbench.bench.pipelined import gain_efficiency
from ppdbench.engine.loading import ModelSpec, load

# Greedy takes 20, of which the head is 2: each half takes 10 or 11 alone, more with the other.
HALVES = Halves(
    greedy=20.0,
    missed=9.0,
    lower_alone=11.0,
    lower_together=12.0,
    upper_alone=10.0,
    upper_together=12.5,
)


def test_the_slower_half_decides_and_a_miss_costs_the_lower_half_again() -> None:
    assert HALVES.speedup_apart(1.0) == pytest.approx(20 / 11)
    assert HALVES.speedup(1.0) == pytest.approx(20 / 12.5)
    assert HALVES.speedup_apart(0.5) == pytest.approx(20 / (11 + 4.5))
    assert HALVES.speedup(0.5) == pytest.approx(20 / (12.5 + 4.5))


def test_what_was_lost_and_what_was_gained_are_all_that_was_promised() -> None:
    found = lost(1.5, 1.4, 1.3, 1.25)
    assert found == pytest.approx({"heads": 0.2, "memory": 0.2, "waiting": 0.1})
    assert sum(found[name] or 0.0 for name in LOST) == pytest.approx(
        1 - (gain_efficiency(1.25, 1.5) or 0.0)
    )


def test_a_form_without_halves_or_a_promise_lost_nothing_that_is_known() -> None:
    assert lost(1.5, None, None, 1.2) == dict.fromkeys(LOST)
    assert lost(1.0, 1.0, 1.0, 1.0) == dict.fromkeys(LOST)


def test_the_table_of_halves_says_how_much_longer_each_takes_beside_the_other() -> None:
    named = {field.name: getattr(HALVES, field.name) for field in fields(HALVES)}
    found = {"weight_bytes": 200_000_000, "added_bytes": 2e7, "halves": {"1": named, "3": named}}
    sheet = halves_sheet({"some float32": found}, {"one": 2e10, "both": 3e10})
    first, second = (dict(zip(sheet.header, row, strict=True)) for row in sheet.rows)
    assert first["lower"] == pytest.approx(12 / 11 - 1)
    assert first["upper"] == pytest.approx(0.25)
    assert first["GB/s"] == pytest.approx(10.0)
    assert first["memory added"] == pytest.approx(0.1)
    assert second["GB/s"] is second["memory added"] is None
    assert any("20.0, two at once 30.0" in note for note in sheet.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="processes share weights on Linux")
def test_every_part_of_a_token_is_timed_alone_and_the_halves_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"lower": 1.0, "upper": 2.0, "missed": 3.0, "greedy": 4.0}

    def timed(*parts: Callable[[], None]) -> list[list[float]]:
        for part in parts:
            part()
        return [[known[part.__name__] + (len(parts) == 1) / 2] for part in parts]

    monkeypatch.setattr(halves, "_timed", timed)
    model = load(ModelSpec(name="synthetic:layers=4,hidden=32,vocab=300", device="cpu"))
    assert measure(model, k=3, rounds=2) == Halves(
        greedy=4.0,
        missed=3.0,
        lower_alone=1.0,
        lower_together=1.5,
        upper_alone=2.0,
        upper_together=2.5,
    )
