"""The time of passes: how it is taken, smoothed, kept and read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.errors import ConfigError
from ppdbench.trees import latency
from ppdbench.trees.latency import WARMUP, Latency, PassTime, isotonic, measure_latency
from tests.helpers import ScriptedClock

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=64"


@cache
def loaded() -> Loaded:
    return load(ModelSpec(name=MODEL, device="cpu"))


def curve(*milliseconds: float, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Latency:
    seconds = [1e-3 * time for time in milliseconds]
    passes = [PassTime(n, s, 0.9 * s, 1.2 * s) for n, s in zip(sizes, seconds, strict=True)]
    return Latency(
        model="tiny",
        synthetic=True,
        weight_hash="0",
        dtype="float32",
        device="cpu",
        threads=1,
        context=16,
        rounds=9,
        passes=tuple(passes),
    )


class CountingClock(ScriptedClock):
    """Every pass takes as long as the script says, one after the other."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__(time for n in seconds for time in (0.0, n))


# Taking the time


def test_passes_that_take_much_of_the_time_there_is_are_timed_once() -> None:
    clock = CountingClock([0.01, 5.0, *(0.02, 0.03, 0.04)])  # the warm-up's long pass is kept
    most_s = 4.0 / latency.LONG
    found = measure_latency(
        loaded(), [3], context=8, rounds=3, warmup=1, most_s=most_s, clock=clock
    )
    assert found.passes == (PassTime(1, 0.03, 0.025, 0.035), PassTime(3, 5, 5, 5))


def test_sizes_take_turns_in_alternating_order_and_medians_are_kept() -> None:
    warmup = [99.0] * 2 * WARMUP
    # Size 3 comes first in one round, last in the next.
    rounds = [5, 1, 2, 7, 6, 3]
    clock = CountingClock([*warmup, *map(float, rounds)])
    found = measure_latency(loaded(), [3], context=8, rounds=3, clock=clock)
    assert found.sizes == (1, 3)
    assert [each.seconds for each in found.passes] == [2, 6]
    assert found.passes[1] == PassTime(3, 6, 5.5, 6.5)
    assert clock.left == []
    assert clock.synchronized == 2 * (WARMUP + 3)


def test_the_facts_of_the_measurement_are_kept() -> None:
    found = measure_latency(loaded(), [2, 5], context=8, rounds=1)
    assert (found.model, found.weight_hash) == (MODEL, loaded().fingerprint)
    assert (found.dtype, found.device, found.context, found.rounds) == ("float32", "cpu", 8, 1)
    assert found.synthetic
    assert found.label == f"{MODEL} (float32, random weights)"
    assert all(each.seconds > 0 for each in found.passes)


def test_passes_run_their_rows_and_leave_the_cache_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = latency._TimedPasses(loaded(), 8, 12, None)
    session, seen = passes.session, []
    for name in ("run", "run_and_read"):
        real = getattr(session, name)

        def spy(given: Any, *arguments: Any, real: Any = real, **named: Any) -> Any:
            seen.append(len(given) if isinstance(given, list) else given.shape[1])
            return real(given, *arguments, **named)

        monkeypatch.setattr(session, name, spy)
    before = [row.clone() for row in session.cache.rows(0)]
    for rows in (1, 2, 12):
        assert passes.time(rows) > 0
        assert session.cached == 8
    assert seen == [1, 2, 12]
    for row, was in zip(session.cache.rows(0), before, strict=True):
        assert row.equal(was)


@pytest.mark.parametrize(
    ("sizes", "context", "rounds", "says"),
    [
        ([4, 60], 8, 1, "8 tokens of context and a pass of 60 rows, but .* cache of 64 at most"),
        ([4], 0, 1, "--context 0: use 1 or more"),
        ([4], 8, 0, "--rounds 0: use 1 or more"),
        ([0], 8, 1, "size 0: use 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    sizes: list[int], context: int, rounds: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        measure_latency(loaded(), sizes, context=context, rounds=rounds)


# Smoothing


def test_what_rises_stays_as_it_is() -> None:
    assert isotonic([1, 2, 2.5]) == (1, 2, 2.5)


def test_dips_are_levelled_by_their_mean() -> None:
    assert isotonic([1, 3, 2, 4]) == (1, 2.5, 2.5, 4)
    assert isotonic([3, 2, 1]) == (2, 2, 2)
    assert isotonic([1, 5, 3, 1, 9]) == (1, 3, 3, 3, 9)
    # A block that falls behind an earlier one swallows it.
    assert isotonic([4, 5, 0]) == (3, 3, 3)


def test_a_smoothed_curve_is_the_nearest_that_never_falls() -> None:
    values = [2.0, 1.0, 4.0, 3.0, 3.5]
    ours = isotonic(values)
    distance = sum((a - b) ** 2 for a, b in zip(ours, values, strict=True))
    grid = [1.0 + step / 4 for step in range(13)]
    for a in grid:
        for b in grid:
            for c in grid:
                other = sorted((a, a, b, c, c))
                far = sum((x - y) ** 2 for x, y in zip(other, values, strict=True))
                assert far >= distance - 1e-9


def test_between_two_sizes_the_time_lies_on_the_line() -> None:
    times = curve(2, 4, 3, 9)
    assert times.at(1) == pytest.approx(0.002)
    assert times.at(2) == times.at(3) == times.at(4) == pytest.approx(0.0035)
    assert times.at(6) == pytest.approx((0.0035 + 0.009) / 2)


@pytest.mark.parametrize("rows", [0, 9])
def test_nothing_is_said_of_sizes_beyond_those_timed(rows: int) -> None:
    with pytest.raises(ConfigError, match=f"a pass of {rows} rows, but .* up to 8"):
        curve(1, 2, 3, 4).at(rows)


# Files


def test_saved_times_are_read_back_raw(tmp_path: Path) -> None:
    times = curve(2, 4, 3, 9)
    times.save(tmp_path / "l.json")
    assert Latency.load(tmp_path / "l.json") == times
    assert json.loads((tmp_path / "l.json").read_text())["passes"][2]["seconds"] == pytest.approx(
        0.003
    )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no first": ({"passes": [{"rows": 2, "seconds": 1, "low": 1, "high": 1}]}, "begin with 1"),
    "none": ({"passes": []}, "begin with 1"),
    "falling": (
        {"passes": [{"rows": n, "seconds": 1, "low": 1, "high": 1} for n in (1, 3, 2)]},
        "begin with 1 and rise",
    ),
    "no time": (
        {"passes": [{"rows": 1, "seconds": 0, "low": 1, "high": 1}]},
        "pass 1: a pass must have rows, and times above 0",
    ),
    "text": (
        {"passes": [{"rows": 1, "seconds": "fast", "low": 1, "high": 1}]},
        "pass 1: seconds must be a number",
    ),
    "unknown": ({"speed": 1}, "unknown key speed"),
    "threads": ({"threads": "two"}, "threads must be a whole number"),
    "synthetic": ({"synthetic": 1}, "synthetic must be true or false"),
    "format": ({"format": "ppdbench-tree"}, "is no latency file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_told_with_their_name(tmp_path: Path, name: str) -> None:
    changes, says = BAD[name]
    path = tmp_path / "l.json"
    curve(2, 4, 3, 9).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=says) as raised:
        Latency.load(path)
    assert str(raised.value).count("l.json") == 1
