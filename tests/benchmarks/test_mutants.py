"""Planted bugs, each in a process whose whole package has it: found, whoever judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attack import mutants

# One that both sides share, one that only wide passes have, one of times; `make attack` has all.
CHOSEN = (
    mutants.the_final_norm_is_forgotten,
    mutants.masked_attention_is_scaled_by_two_percent,
    mutants.drafting_is_not_timed,
)


@pytest.mark.slow
@pytest.mark.parametrize("plant", CHOSEN, ids=lambda plant: plant.__name__)
def test_a_planted_bug_does_not_survive(plant: mutants.Plant, tmp_path: Path) -> None:
    mutant = next(m for m in mutants.MUTANTS if m.plant is plant)
    assert mutants.survived(mutant, tmp_path) is None


def test_at_least_twenty_bugs_that_change_outputs_are_planted() -> None:
    assert sum(mutant.changes_outputs for mutant in mutants.MUTANTS) >= 20
    names = [mutant.plant.__name__ for mutant in mutants.MUTANTS]
    assert len(set(names)) == len(names)
