"""The gain that a tree is expected to give, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass

from ppdbench.stats import Ratio
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import (
    DynamicTree,
    amortized_tokens,
    last_of,
    steady_state,
    transitions,
)
from ppdbench.trees.guessing import guessing_of, method_name
from ppdbench.trees.replay import Replay, replay
from ppdbench.trees.static import check_known, expected_tokens, probabilities
from ppdbench.trees.tree import Tree


def _trees(tree: Tree | DynamicTree) -> list[Tree]:
    """The trees of all states."""
    return [tree] if isinstance(tree, Tree) else [state.tree for state in tree.states]


def played(tree: Tree | DynamicTree, accuracies: Accuracies) -> Replay | None:
    """Decoding of the outputs calibrated on, where the calibration has them."""
    for each in _trees(tree):
        check_known(each, accuracies)
    if not accuracies.outputs:
        return None
    return replay(tree, accuracies.outputs, accuracies.unguided)


def expected(tree: Tree | DynamicTree, accuracies: Accuracies) -> Ratio:
    """Tokens of a step, the model's own included; no interval from counts alone."""
    walked = played(tree, accuracies)
    if walked is not None:
        return walked.tokens_per_step
    if isinstance(tree, Tree):
        return Ratio(expected_tokens(tree, accuracies), None, None)
    return Ratio(amortized_tokens(tree, accuracies), None, None)


@dataclass(frozen=True)
class StateOdds:
    """The probabilities of a tree's nodes to be accepted, and to be the last, the newest token
    first; how much of the time decoding is in this state, and what a step in it gives.
    """

    reached: tuple[float, ...]
    last: tuple[float, ...]
    share: float | None
    tokens: float


def in_states(tree: Tree | DynamicTree, accuracies: Accuracies) -> list[StateOdds]:
    """Work out the odds of each state; a static tree has one, which is not said to be one."""
    trees, walked = _trees(tree), played(tree, accuracies)
    if walked is not None:
        shares = [walked.share(k) for k in range(len(trees))]
    elif isinstance(tree, Tree):
        shares = [1.0]
    else:
        shares = steady_state(transitions(tree, accuracies)).tolist()
    found = []
    for k, (each, share) in enumerate(zip(trees, shares, strict=True)):
        # Of a state that no output came by, the accuracies are all there is to tell.
        if walked is not None and share:
            reached = walked.reached(k, each)
        else:
            reached = (1.0, *probabilities(each, accuracies))
        shown = None if isinstance(tree, Tree) else share
        found.append(StateOdds(reached, last_of(each, reached), shown, sum(reached)))
    return found


def basis(accuracies: Accuracies) -> str:
    """Say in a sentence what the expectation of a tree rests on."""
    outputs = accuracies.outputs
    if not outputs:
        return (
            f"Expected from accuracies over {accuracies.n} places, as if distances were "
            "independent and decoding came by all places alike; calibrate again to have outputs "
            "decoded instead."
        )
    tasks = ", ".join(dict.fromkeys(output.task for output in outputs))
    # A place has one set of guesses, but those of a draft network differ from branch to branch.
    branches = (
        f" Behind other guesses than its likeliest, {method_name(accuracies.method)} makes others "
        "than were counted."
        if guessing_of(accuracies.method).by_branch
        else ""
    )
    return (
        f"Expected: decoding played with the tree over {len(outputs)} greedy outputs "
        f"({sum(output.tokens for output in outputs)} tokens: {tasks}), whose right guesses are "
        f"known; 95% by bootstrap over outputs.{branches}"
    )
