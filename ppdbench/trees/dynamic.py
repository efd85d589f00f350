"""Dynamic sparse trees: who was accepted last decides how far the next guesses reach.

Hardware-aware parallel prompt decoding. A chain of prompt tokens follows every node, and the
chain of the last node accepted makes the guesses of the next step. With i prompt tokens there
they reach i tokens ahead, so that the next tree is T_i, of depth i at most; decoding is then
in state s_i. Prompt tokens take rows of the pass like nodes do. Instead of the same number
for each node, likely nodes get many and unlikely ones few:

1. for each depth k the best candidate tree of n_c nodes is grown, the newest token counted;
2. every node is given m prompt tokens;
3. the prompt token with the smallest dF = p(c) (f(T_i) - f(T_{i-1})) is removed, where i > 1
   are those that c holds, until the pass has n_c + n_p rows.

Here f(T) is the expected number of tokens of a step and p(c) the probability that c is the
last node accepted. Where decoding is in state s_k with probability p(s_k) in the long run, a
step gives R(T) = sum p(s_k) f(T_k) tokens. Of all n_c + n_p = n the largest R is taken.

`n_c` is a cap: a tree of depth 1 has no more nodes than guesses at distance 1. The rows that
such a tree leaves over go to its prompt tokens, as the sizes in the paper's Table 1 show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ppdbench.errors import ConfigError
from ppdbench.files.json_file import write_versioned
from ppdbench.files.keys import Keys
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.static import expected_tokens, grow, probabilities
from ppdbench.trees.tree import FORMAT, VERSION, Tree, listed, open_tree, read_paths

FloatMatrix = npt.NDArray[np.float64]

# Squarings of the chain: after 2**50 steps nothing is left of where it started.
SQUARINGS = 50


@dataclass(frozen=True)
class TreeState:
    """The tree verified in one state, and how many prompt tokens follow each of its nodes.

    `prompts` begins with the newest token, which is a node here.
    """

    tree: Tree
    prompts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.prompts) != 1 + len(self.tree):
            raise ConfigError(
                f"{len(self.prompts)} numbers of prompt tokens for {len(self.tree)} nodes and "
                "the newest token; use one each"
            )

    def rows(self, per_prompt: int = 1) -> int:
        """Rows of its pass: the newest token, nodes, and prompt tokens of so many rows each."""
        return len(self.prompts) + per_prompt * sum(self.prompts)

    def within(self, depth: int) -> TreeState:
        """Drop the nodes that lie deeper."""
        depths = (0, *self.tree.depths)
        kept = (count for count, deep in zip(self.prompts, depths, strict=True) if deep <= depth)
        return TreeState(self.tree.within(depth), tuple(kept))


@dataclass(frozen=True)
class DynamicTree:
    """A tree for each state; `states[k - 1]` is used where guesses reach k tokens ahead."""

    states: tuple[TreeState, ...]

    def __post_init__(self) -> None:
        if not self.states:
            raise ConfigError("there are no states; list one for each prompt token")
        for k, state in enumerate(self.states, 1):
            if state.tree.depth > k:
                raise ConfigError(
                    f"state {k}: its tree is {state.tree.depth} deep, but guesses reach {k} "
                    f"tokens ahead there; use depth {k} or less"
                )
            for count in state.prompts:
                if type(count) is not int or not 1 <= count <= self.reach:
                    raise ConfigError(
                        f"state {k}: a node has {count!r} prompt tokens; use 1..{self.reach}"
                    )

    @property
    def reach(self) -> int:
        """The most prompt tokens of a node, and so the number of states: m."""
        return len(self.states)

    def rows(self, per_prompt: int = 1) -> int:
        """The most rows that a pass has."""
        return max(state.rows(per_prompt) for state in self.states)

    @property
    def top(self) -> int:
        """The number of guesses it takes at a distance."""
        return max(state.tree.top for state in self.states)

    @property
    def nodes(self) -> int:
        """The most nodes that a state has, the newest token not counted."""
        return max(len(state.tree) for state in self.states)

    @classmethod
    def uniform(cls, tree: Tree, reach: int) -> DynamicTree:
        """A static tree as it is decoded with: every node has all prompt tokens."""
        tree.check(max_depth=reach)
        cut = [tree.within(k) for k in range(1, reach + 1)]
        return cls(tuple(TreeState(part, (reach,) * (1 + len(part))) for part in cut))

    def check(self, *, max_depth: int | None = None, max_size: int | None = None) -> None:
        """Refuse a tree that asks for prompt tokens nobody trained, or rows that no cache has."""
        if max_depth is not None and self.reach > max_depth:
            raise ConfigError(
                f"the tree has states for {self.reach} prompt tokens, but {max_depth} are "
                "trained; build one with --depth of that"
            )
        if max_size is not None and self.rows() > max_size:
            raise ConfigError(
                f"the tree takes {self.rows()} rows of a pass, but the cache has room for "
                f"{max_size}; use a smaller tree"
            )

    def save(self, path: str | Path) -> None:
        """Write what `load_tree` reads."""
        states = [{"paths": listed(s.tree.paths), "prompts": list(s.prompts)} for s in self.states]
        write_versioned(Path(path), FORMAT, VERSION, {"states": states})


def load_tree(
    path: str | Path, *, max_depth: int | None = None, max_size: int | None = None
) -> Tree | DynamicTree:
    """The tree in a file, static or dynamic, checked against what can be decoded with."""
    keys = open_tree(path)
    if "states" not in keys.names():
        return Tree.load(path, max_depth=max_depth, max_size=max_size)
    states = tuple(_state(section) for section in keys.sections("states", "state"))
    keys.refuse_the_rest()
    with keys.telling():
        tree = DynamicTree(states)
        tree.check(max_depth=max_depth, max_size=max_size)
    return tree


def _state(keys: Keys) -> TreeState:
    paths, prompts = read_paths(keys), keys.items("prompts")
    keys.refuse_the_rest()
    with keys.telling():
        return TreeState(Tree(paths), tuple(prompts))


# What a tree is worth


def last_probabilities(tree: Tree, accuracies: Accuracies) -> tuple[float, ...]:
    """Return each node's probability to be the last one accepted, the newest token first."""
    return last_of(tree, (1.0, *probabilities(tree, accuracies)))


def last_of(tree: Tree, reached: Sequence[float]) -> tuple[float, ...]:
    """The same of nodes that are accepted so often."""
    last = list(reached)
    for parent, probability in zip(tree.parents, reached[1:], strict=True):
        last[1 + parent] -= probability
    return tuple(max(0.0, left) for left in last)  # rounding may leave less than nothing


def transitions(tree: DynamicTree, accuracies: Accuracies) -> FloatMatrix:
    """p(s_i | s_k) [k - 1, i - 1]: the last node accepted in s_k has i prompt tokens."""
    chain = np.zeros((tree.reach, tree.reach))
    for row, state in zip(chain, tree.states, strict=True):
        last = last_probabilities(state.tree, accuracies)
        np.add.at(row, np.array(state.prompts) - 1, last)
    return chain


def steady_state(chain: FloatMatrix) -> FloatMatrix:
    """Return the part of all steps that is spent in each state.

    Decoding begins in the last state, since all prompt tokens follow the prompt. To stay
    where one is every second time changes no share and keeps the chain from going in circles.
    """
    many = (np.eye(len(chain)) + chain) / 2
    for _ in range(SQUARINGS):
        many = many @ many
        many /= many.sum(axis=1, keepdims=True)
    shares: FloatMatrix = many[-1]
    return shares


def amortized_tokens(tree: DynamicTree, accuracies: Accuracies) -> float:
    """R(T): tokens of a step in the long run, the model's own included."""
    each = [expected_tokens(state.tree, accuracies) for state in tree.states]
    return float(steady_state(transitions(tree, accuracies)) @ each)


# Construction


def search(
    accuracies: Accuracies, rows: int, reach: int | None = None, *, rows_per_prompt: int = 1
) -> DynamicTree:
    """The tree with the largest R(T) of those whose passes have `rows` rows at most.

    A prompt token takes more than one row where it has several embeddings.
    """
    most = rows // (1 + rows_per_prompt)  # every node has one prompt token at least
    if most < 1:
        raise ConfigError(
            f"no dynamic tree has {rows} rows; use {1 + rows_per_prompt} or more: the newest "
            "token and its prompt token"
        )
    depths = range(1, 1 + (reach or accuracies.distances))
    grown = [grow(accuracies, most - 1, depth) for depth in depths]
    largest = 1 + len(grown[-1])
    trees = (
        allot([tree.first(n_c - 1) for tree in grown], accuracies, rows, rows_per_prompt)
        for n_c in range(1, largest + 1)
    )
    return max(trees, key=lambda tree: amortized_tokens(tree, accuracies))


def allot(
    candidates: Sequence[Tree], accuracies: Accuracies, rows: int, rows_per_prompt: int = 1
) -> DynamicTree:
    """Prompt tokens for given candidate trees, one tree for each state."""
    f = [expected_tokens(tree, accuracies) for tree in candidates]
    states = []
    for tree in candidates:
        affordable = (rows - 1 - len(tree)) // rows_per_prompt
        last = last_probabilities(tree, accuracies)
        states.append(TreeState(tree, _prompts(last, f, affordable)))
    return DynamicTree(tuple(states))


def _prompts(last: Sequence[float], f: Sequence[float], affordable: int) -> tuple[int, ...]:
    """Give as many prompt tokens per node as there are states, less those that matter least."""
    prompts = [len(f)] * len(last)

    def loss(node: int) -> tuple[float, int]:
        # Of equals the node that was added last.
        held = prompts[node]
        return last[node] * (f[held - 1] - f[held - 2]), -node

    waiting = [loss(node) for node in range(len(last)) if len(f) > 1]
    heapify(waiting)
    for _ in range(sum(prompts) - affordable):
        node = -heappop(waiting)[1]
        prompts[node] -= 1
        if prompts[node] > 1:
            heappush(waiting, loss(node))
    return tuple(prompts)
