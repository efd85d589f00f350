"""How guesses of methods come: as each says where it is registered."""

from __future__ import annotations

import pytest

from ppdbench.methods import OURS
from ppdbench.trees.guessing import GUESSING, Guessing, guessers, guessing_of


def test_methods_that_guess_are_listed_and_those_of_which_a_fact_holds() -> None:
    assert guessers() == ["eagle", "hidden-transfer", "medusa", "prompt-tokens"]
    assert guessers("dynamic_trees") == ["prompt-tokens"]
    assert guessers("pseudo_states") == ["hidden-transfer"]
    assert set(GUESSING) == set(OURS)


@pytest.mark.parametrize("label", ["greedy", "nobody's", "nobody's:addon=x"])
def test_of_any_other_nothing_particular_is_known(label: str) -> None:
    assert guessing_of(label) == Guessing()


def test_a_label_with_options_is_of_the_same_method() -> None:
    assert guessing_of("prompt-tokens:addon=x") == guessing_of("prompt-tokens") != Guessing()


def test_where_no_method_is_known_nobody_is_told_something_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GUESSING, "_items", {})
    with pytest.raises(AssertionError, match=r"import ppdbench\.methods"):
        guessing_of("medusa")
