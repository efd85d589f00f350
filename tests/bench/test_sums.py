"""What stands for the lists of a sample, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.runs.records import Decoding
from ppdbench.runs.store import read_once
from tests.filled import add_up, overall, summarize, sums_of
from tests.report.page import made

RUNS = Path(__file__).parents[2] / "results" / "tables" / "runs"


def test_sums_stand_for_every_list() -> None:
    sums = sums_of(made.decoded("swift", faster=2.0, matches=[1, 0, 1, 1, 0]))
    assert (sums.tokens, sums.steps, sums.baseline_tokens, sums.baseline_steps) == (5, 3, 5, 4)
    assert (sums.step_ms, sums.draft_ms, sums.baseline_step_ms) == (6.0, 1.5, 12.0)
    assert (sums.proposed, sums.accepted, sums.accepted_each) == (6, 1, (1, 0, 0))
    assert sums.matches == bytes([1, 0, 1, 1, 0])


def lists_of(sample: Decoding) -> set[str]:
    return {n for n in sample.__struct_fields__ if isinstance(getattr(sample, n), list)}


def test_what_is_kept_of_a_sample_holds_no_list_of_numbers() -> None:
    sample = made.decoded("swift", matches=[1], exits=[2], events=[["A", "ahead", 2, 0.0, 1.0]])
    about = sums_of(sample).about
    assert [name for name in about.__struct_fields__ if isinstance(getattr(about, name), list)] == [
        "references"
    ]
    assert about.text == sample["text"]


@pytest.mark.parametrize("name", ["ppd-latency", "layerskip-exits", "layerskip-cnn"])
def test_no_list_that_runs_write_for_each_token_or_step_is_kept(name: str) -> None:
    for one in add_up(read_once(RUNS / name).samples):
        assert lists_of(one.about) <= {"references"}


def test_an_output_of_another_length_counts_by_its_tokens() -> None:
    # Two tokens after the first one, where greedy took four steps.
    sums = sums_of(made.decoded("swift", output_ids=[5, 6, 7], baseline_ids=[5, 6, 8, 9, 10]))
    assert sums.same_length == 2.0
    assert sums.baseline_tokens == 5
    assert sums_of(made.decoded("swift", output_ids=[5])).same_length == 0.0


def test_a_failed_example_counts_as_failed_and_adds_nothing() -> None:
    broken = {"example_id": "2", "task": "gsm8k", "method": "swift", "verdict": "failed"}
    sums = add_up([made.decoded("swift", peak_memory_bytes=7), {**broken, "output_ids": []}])
    assert [one.failed for one in sums] == [False, True]
    (found,) = overall(made.header("bench", methods=made.methods("swift")), sums)
    assert (found["n_examples"], found["failed"], found["n_tokens"]) == (2, 1, 5)
    assert found["ms_per_token"] == pytest.approx(3.0)


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
