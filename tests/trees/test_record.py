"""Ranks by place: how they are written, read and refused."""

from __future__ import annotations

import pytest

from ppdbench.errors import ConfigError
from ppdbench.trees.record import RANKS, RankedOutput


def test_ranks_are_a_character_each_and_a_dot_beyond() -> None:
    output = RankedOutput.of("squad", [[0, 9, 10, 31, 32], [RANKS, 1, 2, 3]])
    assert output == RankedOutput("squad", ("09av.", ".123"))
    assert output.tokens == 5


def test_the_way_of_the_text_ends_where_it_leaves_the_guesses_or_the_output() -> None:
    output = RankedOutput("squad", ("01.2", "3.4", "56"))
    assert output.paths == ((0, 3, 5), (1,), (), (2,))


def test_counts_are_of_places_where_every_distance_has_a_token() -> None:
    counts = RankedOutput("squad", ("0010", "1.0")).counts
    assert [row[:3] for row in counts] == [[2, 1, 0], [1, 1, 0]]
    assert all(len(row) == RANKS for row in counts)


def test_runs_that_counted_all_distances_at_the_same_places_are_read() -> None:
    assert RankedOutput.of("squad", [[0, 1, 2], [3, 4, 5]]) == RankedOutput(
        "squad", ("012.", "345")
    )


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ((), "no ranks; list a text for each distance"),
        (("", ""), "no ranks"),
        (("012", "0w"), "ranks at distance 2 hold 'w'; use 0-9, a-v and ."),
        (("012", "012"), "3 ranks at distance 2, where 3 at distance 1 leave 2"),
        (("0", "", "0"), "1 ranks at distance 3, where 1 at distance 1 leave 0"),
    ],
)
def test_ranks_that_no_output_has_are_refused(ranks: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RankedOutput("squad", ranks)
