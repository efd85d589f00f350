"""What stands for the lists of a sample, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.runs.records import Decoding
from ppdbench.runs.store import read_once
from tests.filled import add_up, sums_of
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
