"""Only steps count that were taken while every place of a batch decoded."""

from __future__ import annotations

from ppdbench.bench.full_batches import Place, Seated, places
from ppdbench.decoding.decoded import Decoded, StepRecord


def seated(began: float, prefill: float, *steps: tuple[float, int], end: int = 0) -> Seated:
    """An output whose steps took so long and accepted so much; `end` tokens of it were cut off."""
    records = tuple(StepRecord(ms, accepted=accepted) for ms, accepted in steps)
    length = 1 + sum(1 + accepted for _, accepted in steps) - end
    return Seated(Decoded(tuple(range(length)), prefill, records, "length"), began)


def test_steps_before_the_last_first_token_and_after_the_first_end_are_left_out() -> None:
    early = seated(0, 5, (10, 2), (10, 1), (10, 0))  # steps at 5-15, 15-25, 25-35
    late = seated(5, 10, (10, 0))  # at 15-25
    assert places([early, late], 2) == [Place(2, 10, 1, 2), Place(2, 10, 1, 1)]


def test_a_newcomers_prompt_makes_the_time_of_all_others_count_for_nothing() -> None:
    whole = seated(0, 0, (10, 0), (10, 0), (10, 0))
    first, second = seated(0, 0, (10, 0)), seated(10, 10, (10, 0))
    assert [p.full_ms for p in places([whole, first, second], 2)] == [20, 10, 10]


def test_a_step_that_ends_a_little_after_the_others_still_counts() -> None:
    one, other = seated(0, 0, (10, 0)), seated(0, 0, (10.5, 0))
    assert [p.full_steps for p in places([one, other], 2)] == [1, 1]
    assert [p.full_steps for p in places([one, seated(0, 0, (12, 0))], 2)] == [1, 0]


def test_tokens_are_those_that_were_kept() -> None:
    both = [seated(0, 0, (10, 3), end=1)] * 2
    assert [p.full_tokens for p in places(both, 2)] == [3, 3]


def test_a_batch_that_was_never_full_has_no_time() -> None:
    assert places([seated(0, 0, (10, 0))], 2) == [Place(2)]


def test_an_output_of_one_token_takes_no_step() -> None:
    assert places([seated(0, 5), seated(0, 1, (10, 0))], 1)[0] == Place(1)
