"""Theory beside measurement, on numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.bench.pipelined import gain_efficiency, geometric, pipelined
from tests.filled import add_up
from tests.units import TWO_UNITS as FACTS
from tests.units import greedy_by_threads


def sample(matches: list[int], step_ms: float, **more: Any) -> dict[str, Any]:
    steps = len(matches) - 1
    return {
        "task": "gsm8k",
        "example_id": "1",
        "method": "ppd",
        "verdict": "identical",
        "output_ids": list(range(len(matches))),
        "matches": matches,
        "step_ms": [step_ms] * steps,
        "greedy_by_threads": greedy_by_threads(steps),
        "communication_ms": 0.5,
        **more,
    }


def five(*samples: dict[str, Any]) -> list[dict[str, Any]]:
    """As many examples as a speedup takes, in equal numbers of each kind."""
    return [{**each, "example_id": f"{n} {i}"} for n in range(5) for i, each in enumerate(samples)]


def test_figures_of_outputs_by_hand() -> None:
    found = pipelined(FACTS, add_up(five(sample([1, 0, 1, 1, 0], 4.0))))
    assert found["p"] == pytest.approx(3 / 5)
    assert found["predicted_speedup"] == pytest.approx(1 / (1 - 0.5 * 0.6))
    # Four steps after the first token, three of them with a head start of two layers.
    assert found["predicted_speedup_matches"] == pytest.approx(16 / 10)
    # Both halves at once take 3; a miss runs the lower half, 2, as well. Greedy: 2 + 2 + 1.
    assert found["predicted_speedup_times"] == pytest.approx(20 / (4 * 3 + 1 * 2))
    assert found["speedup_one_unit"] == pytest.approx(5 / 4)
    assert found["speedup_all_units"] == pytest.approx(1)
    assert found["gain_efficiency"] == pytest.approx(0.25 / (1 / 0.7 - 1))
    assert found["communication_ms_per_token"] == pytest.approx(0.1)
    # Half a millisecond of what two units were there for: a prompt of 9, and four steps.
    outputs = add_up(five(sample([1, 0, 1, 1, 0], 4.0, prefill_ms=9.0)))
    share = pipelined({**FACTS, "units": 2}, outputs)["communication_share"]
    assert share == pytest.approx(0.5 / (2 * (9 + 4 * 4.0)))
    # The run that the end of the output cut off says nothing about lengths.
    assert found["run_lengths"] == {2: 5}
    # Two runs each, of two and three tokens: 2 * 5 + 2 * 2 layer-times; 3 * 2 * 5 layers ahead.
    assert found["units_busy"] == pytest.approx((14 + 30) / 14)


def test_outputs_count_by_their_length() -> None:
    found = pipelined(FACTS, add_up([sample([1, 1], 4.0), sample([0, 0, 0, 0, 0, 0], 5.0)]))
    assert found["p"] == pytest.approx(2 / 8)
    assert found["predicted_speedup_matches"] == pytest.approx(24 / 22)
    assert found["run_lengths"] == {1: 5}


def test_outputs_of_another_length_than_greedys_are_compared_by_the_token() -> None:
    # Four steps of greedy decoding, of which ppd's output, parted at a tie, has only one.
    short = sample([1, 1], 4.0, verdict="tie", greedy_by_threads=greedy_by_threads(4))
    found = pipelined(FACTS, add_up(five(short)))
    assert found["speedup_one_unit"] == pytest.approx(5 / 4)
    assert found["speedup_all_units"] == pytest.approx(1)


def test_examples_measured_with_other_threads_count_by_their_own() -> None:
    other = {"2": greedy_by_threads(1)["1"], "4": greedy_by_threads(1)["2"]}
    both = [sample([1, 1], 4.0), sample([1, 1], 4.0, greedy_by_threads=other)]
    found = pipelined(FACTS, add_up(five(*both)))
    assert found["speedup_one_unit"] == pytest.approx(5 / 4)


def test_an_output_without_a_step_has_no_speed() -> None:
    none = {"1": {"prefill_ms": 3.0, "step_ms": 0.0, "steps": 0}}
    sampled = sample([1, 1], 4.0, verdict="sampled", greedy_by_threads=none)
    found = pipelined(FACTS, add_up([sampled]))
    assert found["speedup_one_unit"] is None
    assert found["greedy_ms_per_token"] is None


def test_nothing_is_measured_beside_a_mismatch() -> None:
    found = pipelined(FACTS, add_up([sample([1, 1, 1], 4.0, verdict="mismatch")]))
    assert found["speedup_one_unit"] is None
    assert found["gain_efficiency"] is None


def test_one_process_has_predictions_only() -> None:
    alone = {**FACTS, "form": "inline", "units": 1}
    found = pipelined(alone, add_up([sample([1, 1, 1], 9.0, greedy_by_threads={})]))
    assert found["speedup_one_unit"] is None
    assert found["predicted_speedup_matches"] == pytest.approx(2)


def test_other_methods_have_none_of_it() -> None:
    assert pipelined(None, add_up([sample([1], 4.0)])) == {}


def test_no_gain_promised_is_no_efficiency() -> None:
    assert gain_efficiency(1.2, 1.0) is None
    assert gain_efficiency(1.2, 1.4) == pytest.approx(0.5)


def test_independent_runs_add_up() -> None:
    assert sum(geometric(0.7, n) for n in range(1, 200)) == pytest.approx(1)
    mean = sum(n * geometric(0.7, n) for n in range(1, 400))
    assert mean == pytest.approx(1 / 0.3)
