"""Static trees: grown ones are the best there are, random ones are trees."""

from __future__ import annotations

import itertools
import random

import pytest

from ppdbench.errors import ConfigError
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.static import expected_tokens, grow, grow_random, probabilities
from ppdbench.trees.tree import Node, Tree
from tests.trees.made import accuracies, drawn


def all_nodes(top: int, depth: int) -> list[Node]:
    return [path for d in range(1, depth + 1) for path in itertools.product(range(top), repeat=d)]


def best_of_all(known: Accuracies, size: int) -> float:
    """By trying every tree of this size."""
    nodes = all_nodes(len(known.hits[0]), known.distances)
    found = 1.0
    for chosen in itertools.combinations(nodes, size):  # shallow ones come first
        if all(path[:-1] in chosen or len(path) == 1 for path in chosen):
            found = max(found, expected_tokens(Tree(chosen), known))
    return found


def test_expected_tokens_are_those_computed_by_hand() -> None:
    known = accuracies((0.5, 0.2), (0.4, 0.1))
    tree = Tree(((0,), (1,), (0, 0), (0, 1)))
    assert probabilities(tree, known) == pytest.approx((0.5, 0.2, 0.2, 0.05))
    assert expected_tokens(tree, known) == pytest.approx(1.95)
    assert expected_tokens(Tree(()), known) == 1


def test_growth_takes_the_likeliest_node_again_and_again() -> None:
    known = accuracies((0.6, 0.2), (0.5, 0.3))
    assert grow(known, 5).paths == ((0,), (0, 0), (1,), (0, 1), (1, 0))


def test_of_equals_the_shallow_node_comes_first_then_the_likelier_guess() -> None:
    known = accuracies((0.5, 0.25, 0.25), (0.5,))
    assert grow(known, 4).paths == ((0,), (1,), (2,), (0, 0))


@pytest.mark.parametrize("seed", range(6))
def test_no_tree_of_the_same_size_is_better_than_a_grown_one(seed: int) -> None:
    known = drawn(seed, distances=2, top=3)
    for size in range(1, 6):
        tree = grow(known, size)
        assert len(tree) == size
        assert expected_tokens(tree, known) == pytest.approx(best_of_all(known, size))


@pytest.mark.parametrize("seed", range(3))
def test_three_levels_are_grown_as_well_as_two(seed: int) -> None:
    known = drawn(seed, distances=3, top=2)
    for size in (3, 5):
        assert expected_tokens(grow(known, size), known) == pytest.approx(best_of_all(known, size))


def test_a_smaller_tree_is_the_beginning_of_a_larger_one() -> None:
    known = drawn(3)
    large = grow(known, 30)
    for size in (1, 7, 29):
        assert grow(known, size) == large.first(size)


def test_depth_limits_a_tree() -> None:
    known = accuracies((0.9, 0.05), (0.9,), (0.9,))
    assert grow(known, 9, depth=1).paths == ((0,), (1,))
    assert grow(known, 9, depth=2).depth == 2
    assert grow_random(known, 9, depth=2).depth == 2


def test_growth_ends_with_guesses_that_were_ever_right() -> None:
    known = accuracies((0.5, 0.0, 0.2), (0.0, 0.0))
    assert grow(known, 10).paths == ((0,), (2,))


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_have_their_size_and_their_seed(seed: int) -> None:
    known = drawn(seed)
    tree = grow_random(known, 20, seed=seed)
    assert len(tree) == 20
    assert tree == grow_random(known, 20, seed=seed) != grow_random(known, 20, seed=seed + 1)
    assert expected_tokens(tree, known) <= expected_tokens(grow(known, 20), known) + 1e-12


def test_random_trees_hang_the_likeliest_guesses_first() -> None:
    known = accuracies((0.1, 0.6, 0.1), (0.2, 0.3))
    for seed in range(5):
        tree = grow_random(known, 4, seed=seed)
        children = [path[-1] for path in tree.paths if len(path) == 1]
        assert children == [1, 0, 2][: len(children)]


def test_random_trees_end_where_there_is_no_place_left() -> None:
    known = accuracies((0.5, 0.2), (0.3,))
    assert set(grow_random(known, 99).paths) == {(0,), (1,), (0, 0), (1, 0)}


def test_accuracies_that_do_not_reach_a_tree_are_refused() -> None:
    known = accuracies((0.5, 0.2), (0.3,))
    with pytest.raises(ConfigError, match="3 deep, but accuracies reach 2"):
        probabilities(Tree(((0,), (0, 0), (0, 0, 0))), known)
    with pytest.raises(ConfigError, match=r"node \[0, 1\].* distance 2 .* ranks 0..0"):
        probabilities(Tree(((0,), (0, 1))), known)


def test_a_simulated_walk_accepts_what_is_expected() -> None:
    known = drawn(4)
    tree = grow(known, 12)
    draw = random.Random(0)
    steps, tokens = 40_000, 0
    for _ in range(steps):
        path: Node = ()
        while True:
            row = known.hits[len(path)] if len(path) < known.distances else ()
            rank = draw.choices([*range(len(row)), None], [*row, known.n - sum(row)])[0]
            tokens += 1
            if rank is None or (*path, rank) not in tree.paths:
                break
            path = (*path, rank)
    assert tokens / steps == pytest.approx(expected_tokens(tree, known), rel=0.01)
