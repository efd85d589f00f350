"""Where the final token first is a layer's first choice, and from where on it stays."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.probe.summary import match_rates, matches_by_example, saturation
from ppdbench.report.probe_tables import saturation_sheet
from tests.filled import StoredRanks


def sample(*by_layer: list[int], task: str = "a") -> dict[str, Any]:
    ranks = {str(n): ranks for n, ranks in enumerate(by_layer, start=1)}
    return {"task": task, "target": "greedy", "ranks": ranks}


def test_a_token_is_known_where_it_first_is_the_first_choice_and_settled_where_it_stays() -> None:
    # One token is settled early, one is known early and lost again, one comes late.
    (found,) = saturation(StoredRanks([sample([0, 0, 5], [0, 3, 1], [0, 0, 0])]))
    assert found.n == 3
    assert (found.earliest, found.stays) == ({1: 2, 3: 1}, {1: 1, 3: 2})
    assert found.earliest_mean == pytest.approx((1 + 1 + 3) / 3)
    assert found.stays_mean == pytest.approx((1 + 3 + 3) / 3)


def test_a_sampled_token_that_nobody_would_have_chosen_counts_for_the_last_layer() -> None:
    (found,) = saturation(StoredRanks([sample([4], [3], [2])]))
    assert (found.earliest, found.stays) == ({3: 1}, {3: 1})
    (drawn,) = saturation(StoredRanks([{**sample([4], [3], [2]), "target": "top-k"}]))
    assert any("A drawn token" in note for note in saturation_sheet([drawn], 3).notes)
    assert not any("A drawn token" in note for note in saturation_sheet([found], 3).notes)


def test_a_token_that_only_an_early_layer_chose_is_known_there_and_settles_nowhere() -> None:
    (found,) = saturation(StoredRanks([sample([0], [0], [1])]))
    assert (found.earliest, found.stays) == ({1: 1}, {3: 1})


def test_outputs_of_unequal_length_and_several_tasks() -> None:
    samples = [sample([0, 0], [0, 0]), sample([1], [0]), sample([0], [0], task="b")]
    assert [(s.task, s.n, s.stays) for s in saturation(StoredRanks(samples))] == [
        ("a", 3, {1: 2, 2: 1}),
        ("b", 1, {1: 1}),
    ]


@pytest.mark.parametrize(
    ("size", "counted"),
    [
        (1, {"1": (1, 2), "2": (1, 2), "3": (2, 2), "total": (4, 6)}),
        # The last bucket holds one position.
        (2, {"1-2": (2, 4), "3-4": (2, 2), "total": (4, 6)}),
        (3, {"1-3": (4, 6), "total": (4, 6)}),
    ],
)
def test_each_bucket_counts_its_own_positions_the_last_one_too(
    size: int, counted: dict[str, tuple[int, int]]
) -> None:
    rates = match_rates(StoredRanks([sample([0, 5, 0]), sample([7, 0, 0])]), [1], {"a": size})
    assert {r.bucket: (round(r.match_rate * r.n), r.n) for r in rates} == counted


@pytest.mark.parametrize("rows", [[[0, 4, 9], [1, 0, 2]], [[0, 4], [1, 0, 2], [7]]])
def test_matches_are_counted_by_example(rows: list[list[int]]) -> None:
    expected = [[[sum(r < k for r in row), len(row)] for row in rows] for k in (1, 3)]
    assert [counts.tolist() for counts in matches_by_example(rows, (1, 3))] == expected


def test_tokens_that_no_probed_layer_settles_need_more_than_the_last_probed_one() -> None:
    probed = StoredRanks([sample([0, 0, 5, 5], [0, 3, 1, 0])])
    (found,) = saturation(probed, n_layers=3)
    assert (found.n, found.earliest, found.stays) == (4, {1: 2, 2: 1}, {1: 1, 2: 1})
    assert (found.earliest_mean, found.stays_mean) == (None, None)
    sheet = saturation_sheet([found], 3)
    rows = {row[2]: row[3:] for row in sheet.rows}
    assert rows == {"first there": (None, 1, 1, 2, ">2"), "there to stay": (None, 1, 2, ">2", ">2")}
    assert any("> more than the deepest" in note for note in sheet.notes)
    (whole,) = saturation(probed, n_layers=2)
    assert whole.stays == {1: 1, 2: 3}
    assert whole.stays_mean == pytest.approx(7 / 4)


def test_layers_that_were_left_out_leave_no_mean_and_bounds() -> None:
    ranks = {"1": [0, 5, 5, 5], "2": [3, 0, 7, 7], "3": [0, 0, 0, 9], "4": [0, 0, 0, 0]}
    whole, some = (
        saturation(
            StoredRanks(
                [{"task": "a", "target": "greedy", "ranks": {n: ranks[n] for n in layers}}]
            ),
            n_layers=4,
        )[0]
        for layers in ("1234", "134")
    )
    assert whole.earliest_mean == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert (some.earliest_mean, some.stays_mean) == (None, None)
    assert some.earliest == {1: 1, 3: 2, 4: 1}
    sheet = saturation_sheet([some], 4)
    assert sheet.rows[0][3:] == (None, 1, "<=3", "<=3", 4)
    assert any("<= means this layer or one before it" in note for note in sheet.notes)
    assert saturation_sheet([whole], 4).rows[0][3:] == (2.5, 1, 2, 3, 4)
