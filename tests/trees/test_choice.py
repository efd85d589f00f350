"""Trees chosen for a method: by their file, by their rows, or the one that lies beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.engine.loading import ModelSpec
from ppdbench.errors import ConfigError
from ppdbench.trees.build import BuildConfig, build_tree
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.choice import ROWS, choose, choose_dynamic, general
from ppdbench.trees.dynamic import DynamicTree
from ppdbench.trees.tree import Tree
from tests.trees.made import accuracies, drawn

CAPACITY = 64


def built(method: str, known: Accuracies, rows: int, folder: Path) -> Tree | DynamicTree:
    """What `tree build --size` makes of a calibration, which is left in the folder."""
    known.save(folder / "calibration.json")
    asked = BuildConfig(
        calibration=folder / "calibration.json",
        size=rows,
        model=ModelSpec(name="synthetic:tiny"),
        measuring={},
    )
    assert known.method == method
    return build_tree(asked).chosen.tree


def test_a_number_is_the_best_tree_of_so_many_rows_by_the_calibration(tmp_path: Path) -> None:
    # .5 * .4 = .2 and .3 lie above every third guess.
    known = accuracies((0.5, 0.3, 0.1), (0.4, 0.1))
    found = choose("medusa", "4", tmp_path, 2, CAPACITY)
    assert built("medusa", known, 4, tmp_path) == Tree(((0,), (1,), (0, 0)))
    assert choose("medusa", "4", tmp_path, 2, CAPACITY) == Tree(((0,), (1,), (0, 0)))
    assert found != Tree(((0,), (1,), (0, 0)))  # the general one, as nothing was measured


@pytest.mark.parametrize("rows", [2, 3, 5, 9, 17])
def test_it_is_the_tree_that_tree_build_makes(rows: int, tmp_path: Path) -> None:
    for method in ("medusa", "hidden-transfer"):
        known = drawn(rows, distances=1 if rows == 2 else 2, method=method)
        if method == "hidden-transfer":
            rows = max(rows, 2 * (1 + known.distances))  # each node carries its pseudo states
        wanted = built(method, known, rows, tmp_path)
        assert choose(method, str(rows), tmp_path, known.distances, CAPACITY) == wanted


@pytest.mark.parametrize("rows", [4, 8, 24])
def test_prompt_tokens_get_a_dynamic_tree_of_so_many_rows(rows: int, tmp_path: Path) -> None:
    wanted = built("prompt-tokens", drawn(rows), rows, tmp_path)
    found = choose_dynamic("prompt-tokens", str(rows), tmp_path, 3, CAPACITY, 1)
    assert found == wanted
    assert found.rows() <= rows
    doubled = choose_dynamic("prompt-tokens", str(2 * rows), tmp_path, 3, CAPACITY, 2)
    assert doubled.rows(2) <= 2 * rows


@pytest.mark.parametrize("per_guess", [1, 2, 4, 9])
def test_without_any_tree_passes_are_as_small_as_with_one(per_guess: int, tmp_path: Path) -> None:
    found = choose_dynamic("prompt-tokens", "", tmp_path, 3, CAPACITY, per_guess)
    assert found.rows(per_guess) <= max(ROWS, 2 * (1 + per_guess))
    with pytest.raises(ConfigError, match="the cache has 3"):
        choose_dynamic("prompt-tokens", "", tmp_path, 3, 3, per_guess)


def test_it_reaches_no_further_than_the_method_guesses(tmp_path: Path) -> None:
    accuracies((0.9,), (0.9,), (0.9,)).save(tmp_path / "calibration.json")
    assert choose("medusa", "8", tmp_path, 2, CAPACITY).depth == 2
    assert choose("medusa", "3", tmp_path, 4, CAPACITY).depth == 2


def test_typical_accuracies_stand_in_for_a_calibration(tmp_path: Path) -> None:
    found = choose("medusa", "9", tmp_path, 3, CAPACITY)
    assert len(found) == 8
    assert found == choose("medusa", "17", tmp_path, 3, CAPACITY).first(8)
    assert found.depth <= general(3).distances


@pytest.mark.parametrize(
    ("method", "rows", "words"),
    [
        ("medusa", "0", "medusa: tree=0: no tree has so few rows; use 2 or more"),
        ("medusa", "1", "tree=1: no tree has so few rows; use 2 or more"),
        ("hidden-transfer", "7", "tree=7: no tree has so few rows; use 8 or more"),
        ("medusa", "65", "tree=65: the cache has room for 64 rows; use a smaller tree"),
        ("medusa", "9" * 40, "the cache has room for 64 rows"),
    ],
)
def test_sizes_that_no_tree_has_are_refused(
    method: str, rows: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        choose(method, rows, tmp_path, 3, CAPACITY)
