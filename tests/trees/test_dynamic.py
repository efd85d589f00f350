"""Dynamic trees: states, prompt tokens, transitions and R(T), by hand, by force, by playing."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppdbench.errors import ConfigError
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import (
    DynamicTree,
    TreeState,
    allot,
    amortized_tokens,
    last_probabilities,
    load_tree,
    search,
    steady_state,
    transitions,
)
from ppdbench.trees.static import expected_tokens, grow
from ppdbench.trees.tree import Node, Tree
from tests.trees.made import accuracies, drawn

KNOWN = accuracies((0.5, 0.15), (0.4, 0.1), method="prompt-tokens")
# The newest token and two nodes, one prompt token less than all.
BY_HAND = DynamicTree(
    (TreeState(Tree(((0,), (1,))), (2, 2, 1)), TreeState(Tree(((0,), (0, 0))), (2, 2, 1)))
)


def candidates(known: Accuracies, n_c: int) -> list[Tree]:
    return [grow(known, n_c - 1, depth) for depth in range(1, known.distances + 1)]


def simulated(tree: DynamicTree, known: Accuracies, steps: int, seed: int = 0) -> float:
    """Tokens of a step, playing the chain: guesses are right by chance, states follow."""
    draw = random.Random(seed)
    nodes: list[dict[Node, int]] = [
        dict(zip(((), *state.tree.paths), state.prompts, strict=True)) for state in tree.states
    ]
    reach, tokens = tree.reach, 0
    for _ in range(steps):
        path: Node = ()
        while len(path) < known.distances:
            row = known.hits[len(path)]
            rank = draw.choices([*range(len(row)), -1], [*row, known.n - sum(row)])[0]
            if (*path, rank) not in nodes[reach - 1]:
                break
            path = (*path, rank)
        tokens += 1 + len(path)
        reach = nodes[reach - 1][path]
    return tokens / steps


# Worked out by hand


def test_the_last_node_accepted_is_likely_as_far_as_its_children_are_not() -> None:
    assert last_probabilities(Tree(((0,), (1,))), KNOWN) == pytest.approx((0.35, 0.5, 0.15))
    assert last_probabilities(Tree(((0,), (0, 0))), KNOWN) == pytest.approx((0.5, 0.3, 0.2))


def test_some_node_is_always_the_last_one() -> None:
    for seed in range(5):
        known = drawn(seed)
        assert sum(last_probabilities(grow(known, 25), known)) == pytest.approx(1)


def test_transitions_follow_the_prompt_tokens_of_the_last_node() -> None:
    assert transitions(BY_HAND, KNOWN) == pytest.approx(np.array([[0.15, 0.85], [0.2, 0.8]]))


def test_the_steady_state_is_the_one_that_stays() -> None:
    chain = transitions(BY_HAND, KNOWN)
    shares = steady_state(chain)
    assert shares == pytest.approx(np.array([0.2, 0.85]) / 1.05)
    assert shares @ chain == pytest.approx(shares)


def test_the_amortized_tokens_weigh_the_states_by_their_share() -> None:
    wanted = (0.2 * 1.65 + 0.85 * 1.7) / 1.05
    assert amortized_tokens(BY_HAND, KNOWN) == pytest.approx(wanted)


def test_the_prompt_token_that_matters_least_goes_first() -> None:
    # f(T_2) - f(T_1) = 0.05, so it goes where decoding ends least often: after (1), 0.15, and
    # after (0, 0), 0.2.
    assert allot(candidates(KNOWN, 3), KNOWN, 8) == BY_HAND
    # Next are 0.35 against 0.5, and 0.3 against 0.5: the newest token, and (0,).
    fewer = allot(candidates(KNOWN, 3), KNOWN, 7)
    assert [state.prompts for state in fewer.states] == [(1, 2, 1), (2, 1, 1)]


def test_every_node_keeps_one_prompt_token() -> None:
    least = allot(candidates(KNOWN, 3), KNOWN, 6)
    assert [state.prompts for state in least.states] == [(1, 1, 1), (1, 1, 1)]
    assert least.rows() == 6


def test_with_rows_enough_nothing_is_removed() -> None:
    assert allot(candidates(KNOWN, 3), KNOWN, 99) == DynamicTree(
        (TreeState(Tree(((0,), (1,))), (2, 2, 2)), TreeState(Tree(((0,), (0, 0))), (2, 2, 2)))
    )


def test_a_shallow_tree_that_ends_early_gives_its_rows_to_prompt_tokens() -> None:
    # As in Table 1 of the paper: 10 nodes with 3 prompt tokens each in state 1, 40 rows, where
    # the others have 33 or 34 nodes and 105 rows.
    known = drawn(2, top=9)
    tree = allot(candidates(known, 34), known, 105)
    assert [len(state.prompts) for state in tree.states] == [10, 34, 34]
    assert [state.rows() for state in tree.states] == [40, 105, 105]


def test_prompt_tokens_of_several_embeddings_take_as_many_rows() -> None:
    known = drawn(2)
    tree = search(known, 40, rows_per_prompt=3)
    assert tree.rows(3) <= 40
    assert tree.rows(3) > 36
    assert amortized_tokens(tree, known) < amortized_tokens(search(known, 40), known)


def test_decoding_that_could_stay_in_either_state_begins_in_the_last() -> None:
    assert steady_state(np.eye(3)) == pytest.approx(np.array([0, 0, 1]))
    assert steady_state(np.array([[1.0, 0.0], [0.1, 0.9]])) == pytest.approx(np.array([1, 0]))


def test_states_taken_in_turns_have_equal_shares() -> None:
    assert steady_state(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(np.array([0.5, 0.5]))


# By force


@pytest.mark.parametrize("seed", range(4))
def test_no_other_prompt_tokens_are_better_with_two_states(seed: int) -> None:
    known = drawn(seed, distances=2, top=3)
    trees = candidates(known, 4)
    for rows in range(8, 13):
        each = [_all_prompts(tree, rows - 1 - len(tree)) for tree in trees]
        best = max(
            amortized_tokens(DynamicTree((TreeState(trees[0], a), TreeState(trees[1], b))), known)
            for a, b in itertools.product(*each)
        )
        assert amortized_tokens(allot(trees, known, rows), known) == pytest.approx(best)


def _all_prompts(tree: Tree, n: int) -> list[tuple[int, ...]]:
    """Every way to give 1 or 2 to each node, `n` together or as many as there can be."""
    ways = list(itertools.product((1, 2), repeat=1 + len(tree)))
    return [way for way in ways if sum(way) == min(n, len(way) * 2)]


@pytest.mark.parametrize("seed", range(3))
def test_with_three_states_greedy_removal_is_close_to_the_best(seed: int) -> None:
    known = drawn(seed, distances=3, top=3)
    trees = candidates(known, 3)
    every = list(itertools.product((1, 2, 3), repeat=3))
    for rows in (8, 10):
        kept = [way for way in every if sum(way) <= rows - 3]
        best = max(
            amortized_tokens(DynamicTree(tuple(map(TreeState, trees, ways))), known)
            for ways in itertools.product(kept, repeat=3)
            if all(sum(way) == min(rows - 3, 9) for way in ways)
        )
        assert amortized_tokens(allot(trees, known, rows), known) >= 0.99 * best


@pytest.mark.parametrize("seed", range(4))
def test_the_search_takes_the_best_of_all_numbers_of_nodes(seed: int) -> None:
    known = drawn(seed)
    for rows in (2, 9, 20):
        values = [
            amortized_tokens(allot(candidates(known, n_c), known, rows), known)
            for n_c in range(1, rows // 2 + 1)
        ]
        assert amortized_tokens(search(known, rows), known) == pytest.approx(max(values))


# What must hold


@pytest.mark.parametrize("seed", range(4))
def test_a_simulation_gives_the_amortized_tokens(seed: int) -> None:
    known = drawn(seed)
    tree = search(known, 14 + 4 * seed)
    assert simulated(tree, known, 40_000) == pytest.approx(amortized_tokens(tree, known), rel=0.01)


def test_a_simulation_through_all_states_gives_the_amortized_tokens() -> None:
    known = accuracies((0.6, 0.2), (0.5, 0.2), (0.5, 0.2), method="prompt-tokens")
    trees = candidates(known, 6)
    tree = DynamicTree(tuple(TreeState(t, (3, 1, 2, 3, 1, 2)[: 1 + len(t)]) for t in trees))
    assert min(steady_state(transitions(tree, known))) > 0.1
    assert simulated(tree, known, 60_000) == pytest.approx(amortized_tokens(tree, known), rel=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_more_rows_never_give_fewer_tokens(seed: int) -> None:
    known = drawn(seed, distances=1 + seed % 4)
    taus = [amortized_tokens(search(known, rows), known) for rows in range(2, 28)]
    assert all(more >= less - 1e-9 for less, more in itertools.pairwise(taus))


@pytest.mark.parametrize("seed", range(4))
def test_a_dynamic_tree_is_no_worse_than_a_static_one_of_its_rows(seed: int) -> None:
    known = drawn(seed)
    for nodes in (2, 4, 9):
        static = DynamicTree.uniform(grow(known, nodes - 1), known.distances)
        dynamic = search(known, static.rows())
        assert amortized_tokens(dynamic, known) >= amortized_tokens(static, known) - 1e-12


def test_static_trees_stay_in_the_last_state() -> None:
    known = drawn(1)
    tree = grow(known, 40)
    static = DynamicTree.uniform(tree, 3)
    assert amortized_tokens(static, known) == pytest.approx(expected_tokens(tree, known))
    assert [state.tree.depth for state in static.states] == [1, 2, 3]
    with pytest.raises(ConfigError, match="3 deep, but guesses reach 2"):
        DynamicTree.uniform(tree, 2)


@pytest.mark.parametrize("rows", [2, 3, 10, 33])
def test_a_search_keeps_to_its_rows_and_its_depths(rows: int) -> None:
    tree = search(drawn(5), rows)
    assert tree.rows() <= rows
    assert all(state.tree.depth <= k for k, state in enumerate(tree.states, 1))
    assert search(drawn(5), rows, 2).reach == 2


def test_fewer_rows_than_any_tree_takes_are_refused() -> None:
    with pytest.raises(ConfigError, match="no dynamic tree has 1 rows; use 2 or more"):
        search(KNOWN, 1)


# Files


def test_a_saved_tree_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    BY_HAND.save(path)
    assert load_tree(path) == BY_HAND
    assert json.loads(path.read_text())["states"] == [
        {"paths": [[0], [1]], "prompts": [2, 2, 1]},
        {"paths": [[0], [0, 0]], "prompts": [2, 2, 1]},
    ]


def test_static_files_are_read_too(tmp_path: Path) -> None:
    Tree(((0,),)).save(tmp_path / "tree.json")
    assert load_tree(tmp_path / "tree.json") == Tree(((0,),))


GOOD = {"paths": [[0]], "prompts": [1, 1]}
BAD: dict[str, tuple[list[Any], str]] = {
    "no states": ([], "no states; list one for each prompt token"),
    "no mapping": ([[0]], "state 1 must be a mapping, not a list of 1"),
    "too deep": (
        [{"paths": [[0], [0, 0]], "prompts": [1, 1, 1]}, GOOD],
        "state 1: its tree is 2 deep",
    ),
    "too few counts": ([{"paths": [[0]], "prompts": [1]}], "1 numbers of prompt tokens for 1"),
    "none": ([{"paths": [[0]], "prompts": [1, 0]}], "a node has 0 prompt tokens; use 1..1"),
    "too many": ([{"paths": [[0]], "prompts": [2, 1]}], "a node has 2 prompt tokens; use 1..1"),
    "text": ([{"paths": [[0]], "prompts": ["1", 1]}], "a node has '1' prompt tokens"),
    "twice": ([{"paths": [[0], [0]], "prompts": [1, 1, 1]}], r"state 1: node \[0\] stands there"),
    "unknown key": ([{**GOOD, "rows": 3}], "state 1: unknown key rows"),
    "no prompts": ([{"paths": [[0]]}], "state 1: the key prompts is missing"),
    "untrained": ([GOOD] * 4, "states for 4 prompt tokens, but 3 are trained"),
    "too large": ([{"paths": [[n] for n in range(9)], "prompts": [1] * 10}], "20 rows of a pass"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_told_with_their_name(tmp_path: Path, name: str) -> None:
    states, says = BAD[name]
    path = tmp_path / "tree.json"
    path.write_text(json.dumps({"format": "ppdbench-tree", "version": 1, "states": states}))
    with pytest.raises(ConfigError, match=says) as raised:
        load_tree(path, max_depth=3, max_size=16)
    assert str(raised.value).count("tree.json") == 1
