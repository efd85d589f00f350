"""The figures of a run, worked out by hand from samples whose every number is known."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.errors import DataError
from tests.filled import add_up, overall, summarize
from tests.report.page import made


def summed(*samples: dict[str, Any], exact: bool = True, **header: Any) -> dict[str, Any]:
    """The summary of one method on one task."""
    head = made.header("bench", methods=made.methods("swift", exact=exact), **header)
    (found,) = summarize(head, add_up(samples))
    return found


def test_figures_are_those_of_all_steps_after_the_prefill() -> None:
    found = summed(made.decoded("swift"), made.decoded("swift", "2", faster=2.0, prefill_ms=5.0))
    # Three steps of 4 ms and three of 2 ms gave four tokens each after the first.
    assert found["ms_per_token"] == pytest.approx(18 / 8)
    assert found["tokens_per_s"] == found["tokens_per_s_per_sequence"] == pytest.approx(8e3 / 18)
    assert found["ms_per_step"] == pytest.approx(18 / 6)
    assert found["prefill_ms"] == found["time_to_first_token_ms"] == pytest.approx(4.0)
    assert (found["n_examples"], found["n_tokens"], found["identical"]) == (2, 10, 2)
    assert found["committed_per_step"] == pytest.approx(8 / 6)
    assert found["accepted_per_proposed"] == pytest.approx(2 / 12)
    assert found["proposed_per_step"] == pytest.approx(2.0)
    assert found["draft_share"] == pytest.approx(1 / 4)
    # Greedy takes 3 ms a step.
    assert found["committed_to_pay"] == pytest.approx((18 / 6) / 3)
    assert found["baseline_tokens_per_s"] == pytest.approx(1e3 / 3)


def test_verdicts_are_counted_each() -> None:
    verdicts = ("identical", "tie", "identical", "mismatch")
    found = summed(*(made.decoded("swift", str(n), verdict=v) for n, v in enumerate(verdicts)))
    assert [found[name] for name in ("identical", "tie", "mismatch", "failed")] == [2, 1, 1, 0]
    assert found["speedup"] is None


def test_an_inexact_method_agrees_up_to_its_first_difference() -> None:
    early = made.decoded("swift", verdict="inexact", baseline_ids=[5, 9, 9, 9, 9])
    early["first_difference"] = 1
    same = made.decoded("swift", "2", verdict="inexact")
    assert summed(early, same, exact=False)["agreement"] == pytest.approx((1 + 5) / 10)
    assert summed(same)["agreement"] is None


def test_an_inexact_output_that_ends_early_lacks_the_tokens_that_greedy_still_gives() -> None:
    short = made.decoded(
        "swift",
        verdict="inexact",
        output_ids=[5, 6, 7],
        baseline_ids=[5, 6, 7, 8, 9],
        step_ms=[4.0] * 2,
        accepted=[0, 0],
    )
    short["first_difference"] = 3
    same = made.decoded("swift", "2", verdict="inexact")
    assert summed(short, exact=False)["agreement"] == pytest.approx(3 / 5)
    assert summed(short, same, exact=False)["agreement"] == pytest.approx((3 + 5) / 10)


def test_random_weights_have_no_quality() -> None:
    scored = {"data__gsm8k__metrics": ["gsm8k_accuracy"]}
    wrong = made.decoded("swift", references=["#### 42"])
    assert summed(wrong, **scored)["quality"] == {"gsm8k_accuracy": 0.0}
    assert summed(wrong, **scored, model__synthetic=True)["quality"] is None


def test_a_run_without_samples_has_no_figures() -> None:
    with pytest.raises(DataError, match="no finished samples"):
        summarize(made.header("bench", methods=made.methods("swift")), [])


def test_a_failed_example_counts_as_failed_and_adds_nothing() -> None:
    broken = {"example_id": "2", "task": "gsm8k", "method": "swift", "verdict": "failed"}
    sums = add_up([made.decoded("swift", peak_memory_bytes=7), {**broken, "output_ids": []}])
    assert [one.failed for one in sums] == [False, True]
    (found,) = overall(made.header("bench", methods=made.methods("swift")), sums)
    assert (found["n_examples"], found["failed"], found["n_tokens"]) == (2, 1, 5)
    assert found["ms_per_token"] == pytest.approx(3.0)


def test_of_some_examples_there_is_no_speedup_and_no_score() -> None:
    scored = {"data__gsm8k__metrics": ["gsm8k_accuracy"]}
    done = [made.decoded("swift", str(n), references=["#### 42"]) for n in range(6)]
    whole = summed(*done, **scored)
    assert whole["speedup"] is not None
    assert whole["quality"] is not None
    broken = {"example_id": "7", "task": "gsm8k", "method": "swift", "verdict": "failed"}
    some = summed(*done, {**broken, "output_ids": []}, **scored)
    assert (some["speedup"], some["speedup_withheld"]) == (None, "failed examples")
    assert some["quality"] is None
    assert some["ms_per_token"] == whole["ms_per_token"]


def test_tasks_and_all_of_them_are_made_of_the_same_sums() -> None:
    samples = [
        made.decoded("swift", str(n), task=task, faster=faster)
        for task, faster in (("gsm8k", 2.0), ("squad", 0.5))
        for n in range(5)
    ]
    head, sums = made.header("bench", methods=made.methods("swift")), add_up(samples)
    one, other = summarize(head, sums, scores=False)
    (together,) = overall(head, sums)
    assert (one["speedup"], other["speedup"]) == (pytest.approx(2.0), pytest.approx(0.5))
    assert together["speedup"] == pytest.approx(120 / (30 + 120))
    assert together["n_tokens"] == one["n_tokens"] + other["n_tokens"]
