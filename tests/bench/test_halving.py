"""Successive halving: half of the cells, twice the examples, and the same choice each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ppdbench.bench.halving import better, expected_samples, portion, rungs
from ppdbench.errors import ConfigError
from ppdbench.runs.records import Stage


def steps(n_cells: int, *per_task: int, search: str = "halving") -> list[tuple[int, int]]:
    return [(rung.cells, rung.examples) for rung in rungs(search, n_cells, per_task)]


def test_cells_halve_while_examples_double_up_to_all_of_them() -> None:
    assert steps(9, 16) == [(9, 2), (5, 4), (3, 8), (2, 16)]
    assert steps(4, 32) == [(4, 16), (2, 32)]


def test_a_grid_measures_all_cells_on_all_examples() -> None:
    assert steps(9, 16, search="grid") == [(9, 16)]


def test_two_cells_have_nothing_to_halve() -> None:
    assert steps(2, 16) == [(2, 16)]


def test_few_examples_make_fewer_rungs_and_leave_more_cells() -> None:
    assert steps(32, 8) == [(32, 2), (16, 4), (8, 8)]


def test_every_task_has_its_part_of_every_rung() -> None:
    found = rungs("halving", 8, [8, 3])
    assert [rung.examples for rung in found] == [3, 6, 11]
    assert [portion(found[0].part, n) for n in (8, 3)] == [2, 1]


def test_too_few_examples_to_begin_with_fewer_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fewer than 3 examples.*raise --limit"):
        rungs("halving", 9, [1, 1, 1])
    with pytest.raises(ConfigError, match="fewer than 1 example, and"):
        rungs("halving", 9, [1])


def test_the_faster_half_goes_on_in_its_old_order() -> None:
    speeds = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 3.0}
    assert better(list("abcd"), speeds, 2) == ["b", "d"]


def test_cells_without_a_speed_are_the_last_to_stay_and_equals_keep_their_order() -> None:
    assert better(list("abcd"), {"a": None, "b": 1.0, "c": None, "d": 1.0}, 1) == ["b"]
    assert better(list("abcd"), {"b": 0.1}, 2) == ["a", "b"]


def test_expected_samples_count_each_example_of_a_cell_once() -> None:
    header: Any = SimpleNamespace(
        methods=dict.fromkeys("abcdefghi"),
        not_run={},
        rungs=[Stage(cells=c, examples=n) for c, n in ((9, 2), (5, 4), (3, 8), (2, 16))],
    )
    assert expected_samples(header) == 9 * 2 + 5 * 2 + 3 * 4 + 2 * 8
    header.not_run = dict.fromkeys("abcdef")
    assert expected_samples(header) == 3 * 8 + 2 * 8
