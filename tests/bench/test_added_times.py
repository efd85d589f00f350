"""Times must add up to what an output took, or no speedup is claimed of them."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.bench.added_times import closes
from ppdbench.bench.claims import claim, over_greedy
from ppdbench.bench.sums import SampleSums
from tests.filled import sums_of


def sample(number: int, **changed: Any) -> SampleSums:
    """An output of 11 tokens: 20 ms of prefill, then 10 steps of 8 ms, greedy's of 10 ms."""
    return sums_of(
        {
            "example_id": str(number),
            "task": "gsm8k",
            "method": "odd",
            "verdict": "identical",
            "output_ids": list(range(11)),
            "text": "one two three four",
            "accepted": [0] * 10,
            "proposed": [0] * 10,
            "rows": [1] * 10,
            "prefill_ms": 20.0,
            "step_ms": [8.0] * 10,
            "draft_ms": [],
            "wall_ms": 100.5,
            "prompt_ms": 19.5,
            "baseline_prefill_ms": 20.0,
            "baseline_step_ms": [10.0] * 10,
            "baseline_again_ms": 100.0,
            "baseline_wall_ms": 120.8,
            "baseline_prompt_ms": 19.0,
            **changed,
        }
    )


WRONG = {
    "something is not timed": {"step_ms": [7.0] * 10},
    "something is timed twice": {"step_ms": [9.0] * 10},
    "the prefill is counted as a step": {"prefill_ms": 0.0, "step_ms": [10.0] * 10},
    "greedy's steps count twice": {"baseline_step_ms": [20.0] * 10},
    "greedy's prefill is counted as a step": {
        "baseline_prefill_ms": 0.0,
        "baseline_step_ms": [12.0] * 10,
    },
}


def test_times_that_add_up_are_claimed() -> None:
    samples = [sample(n) for n in range(6)]
    assert closes(samples)
    speedup = claim([over_greedy(one) for one in samples])
    assert speedup.value == pytest.approx(1.25)
    assert speedup.withheld is None


@pytest.mark.parametrize("wrong", WRONG)
def test_times_that_do_not_add_up_are_withheld_with_the_reason(wrong: str) -> None:
    samples = [sample(n, **WRONG[wrong]) for n in range(6)]
    assert not closes(samples)
    assert claim([over_greedy(one) for one in samples]).withheld == "times do not add up"


def test_a_few_examples_that_were_interrupted_change_nothing() -> None:
    samples = [sample(n, **({"wall_ms": 180.0} if n < 2 else {})) for n in range(6)]
    assert closes(samples)


def test_a_millisecond_around_an_output_is_no_gap() -> None:
    assert closes([sample(1, step_ms=[0.1] * 10, wall_ms=21.9)])
    assert not closes([sample(1, step_ms=[0.1] * 10, wall_ms=24.0)])


def test_runs_that_were_not_seen_from_outside_are_taken_as_they_are() -> None:
    unseen = dict.fromkeys(("wall_ms", "prompt_ms", "baseline_wall_ms", "baseline_prompt_ms"))
    assert closes([sample(1, **unseen)])
    assert closes([])
