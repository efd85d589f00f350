"""Which setting is best, and whether it can be told from the second."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.bench.sweep_summary import Swept
from ppdbench.errors import DataError
from tests.filled import add_up, swept
from tests.sweeps import cells, header, label, sample

ONE, TWO, FOUR = (label(exit_layer=n) for n in (1, 2, 4))
AXES = {"exit_layer": (1, 2, 4)}


def found(samples: list[dict[str, Any]], examples: int = 6, **changes: Any) -> Swept:
    return swept(header(AXES, examples, **changes), add_up(samples))


def test_the_fastest_cell_is_the_best_and_stands_where_it_lies() -> None:
    result = found(cells({ONE: 0.7, TWO: 1.4, FOUR: 1.2}))
    assert [cell.label for cell in result.cells] == [TWO, FOUR, ONE]
    assert [cell.standing for cell in result.cells] == ["faster", "faster", "slower"]
    assert result.leaders[0].at == {"exit_layer": 2}
    assert result.best_at({"exit_layer": 4}).label == FOUR
    assert result.complete


def test_the_lead_is_the_ratio_of_times_on_the_same_examples() -> None:
    result = found(cells({ONE: 0.7, TWO: 1.4, FOUR: 1.2}))
    assert result.lead is not None
    assert result.lead.value == pytest.approx(1.4 / 1.2)
    assert result.distinguishable


def test_cells_that_take_turns_in_being_faster_cannot_be_told_apart() -> None:
    samples = [
        sample(name, n, speed)
        for name, speeds in {
            ONE: (1.2, 1.6, 1.3, 1.5, 1.2, 1.6),
            TWO: (1.5, 1.3, 1.6, 1.1, 1.5, 1.3),
        }.items()
        for n, speed in enumerate(speeds)
    ]
    assert not found(samples).distinguishable


def test_a_slower_hour_of_the_machine_does_not_decide_between_heats() -> None:
    # The baseline of its own heat was as slow as the cell.
    slow = [sample(ONE, n, 1.5, slower=2.0) for n in range(6)]
    result = found(slow + cells({TWO: 1.4}))
    assert result.leaders[0].label == ONE
    assert result.lead is not None
    assert result.lead.value == pytest.approx(1.5 / 1.4)


def test_a_mismatch_has_no_speedup_and_is_never_the_best() -> None:
    wrong = [sample(ONE, n, 9.0, "mismatch" if n == 2 else "identical") for n in range(6)]
    result = found(wrong + cells({TWO: 1.1, FOUR: 1.2}))
    assert result.leaders[0].label == FOUR
    assert (result.cells[-1].label, result.cells[-1].standing) == (ONE, "mismatch")
    assert result.cells[-1].speedup is None


def test_a_cell_that_failed_on_an_example_is_never_the_best() -> None:
    broken = [sample(ONE, n, 9.0, "failed" if n == 0 else "identical") for n in range(6)]
    result = found(broken + cells({TWO: 1.1}))
    assert result.leaders[0].label == TWO
    assert result.best_at({"exit_layer": 1}).standing == "failed"


def test_cells_left_behind_do_not_win_by_their_few_examples() -> None:
    few = cells({ONE: 5.0}, examples=2)
    result = found(few + cells({TWO: 1.4, FOUR: 1.2}))
    assert [cell.label for cell in result.cells] == [TWO, FOUR, ONE]
    assert [cell.label for cell in result.leaders] == [TWO, FOUR]


def test_a_cell_that_could_not_start_says_why() -> None:
    result = found(cells({ONE: 1.2, TWO: 1.3}), not_run={FOUR: "no weights"})
    assert (result.cells[-1].standing, result.cells[-1].error) == ("not run", "no weights")
    assert result.complete


def test_an_unfinished_sweep_says_so() -> None:
    assert not found(cells({ONE: 1.2, TWO: 1.3})).complete


def test_without_any_speedup_there_is_no_best() -> None:
    result = found([sample(ONE, n, 1.0, "mismatch") for n in range(6)])
    assert result.leaders == ()
    assert result.lead is None
    assert not result.distinguishable


@pytest.mark.parametrize(
    ("kind", "samples", "message"),
    [("bench", cells({ONE: 1.0}), "is no sweep"), ("sweep", [], "no finished samples")],
)
def test_other_runs_and_empty_ones_are_refused(
    kind: str, samples: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        found(samples, kind=kind)
