"""The batch from which a method stops paying: by hand, with an interval, and where withheld."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from ppdbench.bench.crossover import crossovers
from ppdbench.bench.sums import SampleSums, sums_of
from ppdbench.runs.records import DecodedSample, DecodingMethod
from ppdbench.stats import Crossing, Ratio, crossing
from tests import records


def method(name: str, batch: int) -> DecodingMethod:
    return DecodingMethod(name=name, exact=True, options={}, loaded={}, batch=batch)


def one(example: int, batch: int, greedy_ms: float, ms: float, **parts: Any) -> SampleSums:
    """An example that greedy and a method decoded in batches of this size, ten tokens each."""

    def full(ms: float) -> dict[str, Any]:
        return {"ms": ms, "steps": 10, "tokens": 10}

    told = {
        "example_id": str(example),
        "task": "t",
        "method": "lookup" if batch == 1 else f"lookup (batch {batch})",
        "batch": batch,
        "output_ids": list(range(11)),
        "full": full(ms),
        "baseline_full": full(greedy_ms),
        "baseline_again_full": full(greedy_ms),
    }
    if batch == 1:
        told |= {"step_ms": [ms / 10] * 10, "accepted": [0] * 10, "proposed": [0] * 10}
        told |= {"baseline_step_ms": [greedy_ms / 10] * 10}
    return sums_of(msgspec.convert(records.sample("bench", **told | parts), DecodedSample))


METHODS = {"lookup": method("prompt-lookup", 1), "greedy": method("greedy", 1)}
METHODS |= {f"lookup (batch {n})": method("prompt-lookup", n) for n in (2, 4)}


def test_the_crossing_lies_between_the_sizes_around_it() -> None:
    # Speedups 2, 1.5 and 0.5: half-way from 2 to 4, on an axis of ratios.
    found = crossing([1, 2, 4], [[20.0], [15], [5]], [[10.0], [10], [10]])
    assert found.value == pytest.approx(math.sqrt(8))


def test_always_and_never_paying_have_no_crossing() -> None:
    assert crossing([1, 2], [[12.0, 11], [11, 12]], [[10.0, 10], [10, 10]]).value == math.inf
    assert crossing([1, 2], [[8.0, 9], [11, 12]], [[10.0, 10], [10, 10]]) == Crossing(0, 0, 0)


def test_the_first_of_several_crossings_counts() -> None:
    speeds = [[20.0], [5], [20], [5]]
    assert 1 < crossing([1, 2, 4, 8], speeds, [[10.0]] * 4).value < 2


def test_its_interval_holds_what_examples_vary() -> None:
    greedy = [[20.0, 20, 20, 20, 20, 20], [10.0, 10, 10, 10, 10, 10]]
    steady = crossing([1, 4], greedy, [[10.0] * 6, [20.0] * 6])
    assert steady.low == steady.value == steady.high
    varied = crossing([1, 4], greedy, [[10.0] * 6, [5.0, 11, 12, 30, 40, 9]])
    assert varied.low < varied.value < varied.high


def test_each_label_of_a_method_is_told_its_crossover() -> None:
    sums = [
        one(e, b, 100, 100 * slow) for e in range(5) for b, slow in ((1, 0.5), (2, 0.8), (4, 2))
    ]
    found = crossovers(METHODS, sums)
    assert set(found) == {"lookup", "lookup (batch 2)", "lookup (batch 4)"}
    figures = found["lookup"].figures(1)
    # Speedups 1.25 and 0.5: a third of the way from 2 to 4.
    assert figures["crossover_batch"] == pytest.approx(2 * 2 ** (1 / 3))
    assert figures["crossover"] == "pays up to 2.5"
    assert figures["crossover_interval"] == "[2.5, 2.5]"


def test_beyond_what_was_measured_words_say_where() -> None:
    always = [one(e, b, 100, 50) for e in range(5) for b in (1, 2, 4)]
    figures = crossovers(METHODS, always)["lookup"].figures(1)
    assert figures["crossover"] == "pays up to 4 at least"
    assert figures["crossover_interval"] == "[>4, >4]"
    assert figures["crossover_batch"] is figures["crossover_high"] is None
    never = [one(e, b, 100, 200) for e in range(5) for b in (1, 2, 4)]
    assert crossovers(METHODS, never)["lookup"].words == "pays at no size from 1 on"


def test_few_examples_and_mismatches_give_no_crossover() -> None:
    few = [one(e, b, 100, 50) for e in range(4) for b in (1, 2)]
    assert crossovers(METHODS, few)["lookup"].words == "too few examples"
    wrong = [one(e, b, 100, 50, verdict="mismatch") for e in range(5) for b in (1, 2)]
    assert crossovers(METHODS, wrong)["lookup"].words == "mismatch"
    assert crossovers(METHODS, wrong)["lookup"].figures(1)["crossover_batch"] is None


def test_times_that_do_not_add_up_at_one_size_give_no_crossover() -> None:
    unseen = {1: {"wall_ms": 900.0}}
    odd = [one(e, b, 100, 50, **unseen.get(b, {})) for e in range(5) for b in (1, 2, 4)]
    assert crossovers(METHODS, odd)["lookup"].words == "times do not add up"


def test_one_size_alone_has_none() -> None:
    assert crossovers({"lookup": METHODS["lookup"]}, [one(0, 1, 100, 50)]) == {}


def test_where_noise_could_have_made_every_speedup_there_is_no_crossover() -> None:
    small = [one(e, b, 100, slow) for e in range(5) for b, slow in ((1, 80), (2, 80), (4, 120))]
    told = crossovers(METHODS, small)["lookup"]
    assert told.found is not None
    wide, narrow = Ratio(1.0, 1 / 1.5, 1.5), Ratio(1.0, 1 / 1.1, 1.1)
    noisy = crossovers(METHODS, small, noise=dict.fromkeys(METHODS, wide))["lookup"]
    assert (noisy.words, noisy.interval) == ("no difference at any size", "-")
    assert noisy.figures(1)["crossover_batch"] is None
    in_part = crossovers(METHODS, small, noise={**dict.fromkeys(METHODS, wide), "lookup": narrow})[
        "lookup"
    ]
    assert in_part == told
