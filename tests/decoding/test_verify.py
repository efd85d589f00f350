"""Greedy acceptance: the model's own choices, followed through chains and trees."""

from __future__ import annotations

import random

import pytest

from ppdbench.decoding.draft import Draft
from ppdbench.decoding.verify import Outcome, accept_greedy


def test_a_chain_is_kept_up_to_its_first_wrong_token() -> None:
    chain = Draft.chain([4, 5, 6])
    assert accept_greedy(chain, [4, 5, 6, 7]) == Outcome((0, 1, 2), 7)
    assert accept_greedy(chain, [4, 5, 0, 7]) == Outcome((0, 1), 0)
    assert accept_greedy(chain, [4, 0, 6, 7]) == Outcome((0,), 0)
    assert accept_greedy(chain, [0, 5, 6, 7]) == Outcome((), 0)


def test_right_tokens_after_a_wrong_one_do_not_count() -> None:
    assert accept_greedy(Draft.chain([9, 5, 6]), [4, 5, 6, 7]).path == ()


def test_without_a_draft_the_model_adds_its_own_token() -> None:
    assert accept_greedy(Draft.empty(), [3]) == Outcome((), 3)


#       newest
#      /      \
#   0: 4     1: 5
#   /  \        \
# 2: 6  3: 7   4: 6
TREE = Draft.tree([4, 5, 6, 7, 6], [-1, -1, 0, 0, 1])


@pytest.mark.parametrize(
    ("predictions", "outcome"),
    [
        ([4, 7, 0, 0, 2, 0], Outcome((0, 3), 2)),
        ([4, 6, 0, 3, 0, 0], Outcome((0, 2), 3)),
        ([5, 9, 6, 0, 0, 8], Outcome((1, 4), 8)),
        ([5, 9, 7, 0, 0, 8], Outcome((1,), 7)),  # 7 hangs on the other branch
        ([6, 9, 9, 9, 9, 9], Outcome((), 6)),  # 6 is there, but not next
    ],
)
def test_a_tree_is_followed_branch_by_branch(predictions: list[int], outcome: Outcome) -> None:
    assert accept_greedy(TREE, predictions) == outcome


def test_a_chain_written_as_a_tree_is_judged_alike() -> None:
    draw = random.Random(0)
    for _ in range(100):
        tokens = [draw.randrange(2) for _ in range(4)]
        predictions = [draw.randrange(2) for _ in range(5)]
        tree = Draft.tree(tokens, [-1, 0, 1, 2])
        assert accept_greedy(tree, predictions) == accept_greedy(Draft.chain(tokens), predictions)


def test_riders_are_never_accepted_even_where_the_model_agrees() -> None:
    assert accept_greedy(Draft((4, 5, 6), riders=2), [4, 5, 6, 7]) == Outcome((0,), 5)
    assert accept_greedy(Draft((4,), riders=1), [4, 5]) == Outcome((), 4)
    tree = Draft.tree([4, 5, 5, 4], [-1, 0, 1, -1], riders=2)
    assert accept_greedy(tree, [4, 5, 5, 9, 9]) == Outcome((0, 1), 5)


def followed(draft: Draft, predictions: list[int]) -> Outcome:
    """Every line of the tree, tried one by one: the longest on which all predictions hold."""
    parents = draft.parents
    assert parents is not None
    best: tuple[int, ...] = ()
    for node in range(draft.proposed):
        line = [node]
        while parents[line[0]] >= 0:
            line.insert(0, parents[line[0]])
        before = [-1, *line[:-1]]
        held = all(draft.tokens[n] == predictions[b + 1] for b, n in zip(before, line, strict=True))
        if held and len(line) > len(best):
            best = tuple(line)
    return Outcome(best, predictions[best[-1] + 1 if best else 0])


def test_on_random_trees_the_longest_right_line_wins() -> None:
    draw = random.Random(2)
    depths = set()
    for _ in range(1000):
        n, riders = draw.randrange(1, 10), draw.randrange(0, 3)
        pairs = {(draw.randrange(-1, node), draw.randrange(3)): node for node in range(n)}
        # A pair drawn twice would be a twin, and its node might be named as a parent.
        if len(pairs) < n:
            continue
        extra = [(draw.randrange(-1, n), draw.randrange(3)) for _ in range(riders)]
        parents, tokens = zip(*pairs, *extra, strict=True)
        tree = Draft.tree(tokens, parents, riders=riders)
        tree.check(3)
        predictions = [draw.randrange(3) for _ in range(n + riders + 1)]
        outcome = accept_greedy(tree, predictions)
        assert outcome == followed(tree, predictions)
        depths.add(len(outcome.path))
    assert {0, 1, 2, 3} <= depths
