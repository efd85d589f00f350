"""Identity is token by token, and a prefix is not identical."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ppdbench.decoding.identity import compare, first_difference

CASES: list[tuple[Sequence[int], Sequence[int], int | None]] = [
    ([], [], None),
    ([5], [5], None),
    ([5, 6, 2], [5, 6, 2], None),
    ([4, 6, 2], [5, 6, 2], 0),
    ([5, 7, 2], [5, 6, 2], 1),
    ([5, 6, 3], [5, 6, 2], 2),
    ([5, 7, 9], [5, 6, 8], 1),
    # One is a prefix of the other: the first missing token is the difference.
    ([5, 6], [5, 6, 2], 2),
    ([5, 6, 2], [5, 6], 2),
    ([], [5], 0),
    ([5], [], 0),
    # Other lengths, and a difference before the shorter ends.
    ([5, 7], [5, 6, 2], 1),
    # The same tokens in another order, and one run shifted by one.
    ([6, 5], [5, 6], 0),
    ([5, 5, 6], [5, 6, 6], 1),
]


@pytest.mark.parametrize(("ours", "greedy", "position"), CASES)
def test_the_first_difference_is_found(
    ours: Sequence[int], greedy: Sequence[int], position: int | None
) -> None:
    assert first_difference(ours, greedy) == position
    assert first_difference(greedy, ours) == position


@pytest.mark.parametrize(("ours", "greedy", "position"), CASES)
def test_outputs_are_identical_exactly_where_they_never_differ(
    ours: Sequence[int], greedy: Sequence[int], position: int | None
) -> None:
    expected = "identical" if position is None else "mismatch"
    assert compare(ours, greedy) == expected
    assert compare(greedy, ours) == expected


def test_lists_and_tuples_of_the_same_tokens_are_identical() -> None:
    assert compare([5, 6], (5, 6)) == "identical"
