"""Decoding with a tree, played over texts of which it is known where guesses are right.

A step accepts as much of the tree as the text follows, adds the model's own token and goes on
behind it, so that no model is needed to know which places decoding comes by and what it gets
there. The mean over all places is another number. Decoding leaps over an easy stretch in few
steps and crawls through a hard one in many, so that hard places weigh more with it than they
have tokens; and a stretch is easy or hard as a whole, so that a guess is right more often where
the one before it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ppdbench.stats import Ratio, ratio_of_totals
from ppdbench.trees.dynamic import DynamicTree
from ppdbench.trees.record import RankedOutput
from ppdbench.trees.tree import Node, Tree

# The nodes of a tree, the newest token included, and the state that decoding is in behind each.
Moves = dict[Node, int]


@dataclass(frozen=True)
class Replay:
    """The results of a replay: `tokens` and `steps` of each output, the first token not counted.

    `kept` has, for each state of the tree, how often each of its nodes was the last one
    accepted. A static tree has one state.
    """

    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    kept: tuple[Counter[Node], ...]

    @cached_property
    def tokens_per_step(self) -> Ratio:
        """The model's own token included, with the interval that drawing other outputs gives."""
        return ratio_of_totals(self.tokens, self.steps)

    def share(self, state: int) -> float:
        """Return the part of all guided steps that was in a state."""
        return self.kept[state].total() / max(1, sum(each.total() for each in self.kept))

    def reached(self, state: int, tree: Tree) -> tuple[float, ...]:
        """Return how often each node was accepted in a state, the newest token first."""
        ends, passed = self.kept[state], Counter[Node]()
        for end, times in ends.items():
            for length in range(1 + len(end)):
                passed[end[:length]] += times
        return tuple(passed[node] / max(1, ends.total()) for node in ((), *tree.paths))


def replay(tree: Tree | DynamicTree, outputs: Sequence[RankedOutput], unguided: int = 0) -> Replay:
    """Decode outputs with a tree; the first `unguided` steps of each have no guesses yet."""
    states = _states(tree)
    kept: list[Counter[Node]] = [Counter() for _ in states]
    steps = tuple(_follow(output.paths, states, kept, unguided) for output in outputs)
    return Replay(tuple(output.tokens for output in outputs), steps, tuple(kept))


def _states(tree: Tree | DynamicTree) -> list[Moves]:
    if isinstance(tree, Tree):
        return [dict.fromkeys(((), *tree.paths), 0)]
    return [
        {
            path: prompts - 1
            for path, prompts in zip(((), *state.tree.paths), state.prompts, strict=True)
        }
        for state in tree.states
    ]


def _follow(
    ways: Sequence[Node], states: Sequence[Moves], kept: Sequence[Counter[Node]], unguided: int
) -> int:
    """Steps to the end of an output. All prompt tokens follow the first one: the last state."""
    steps = place = min(unguided, len(ways))
    state = len(states) - 1
    while place < len(ways):
        # The model's own token takes the last place, so that no guess is accepted there.
        way = ways[place][: len(ways) - place - 1]
        moves = states[state]
        node: Node = ()
        while len(node) < len(way) and way[: len(node) + 1] in moves:
            node = way[: len(node) + 1]
        kept[state][node] += 1
        state = moves[node]
        place += len(node) + 1
        steps += 1
    return steps
