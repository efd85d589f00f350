"""Trees that stay the same at every step.

The expected number of tokens of a step is one, the model's own, plus the probability of every
node, which is the product of the accuracies on its path. It shrinks with every guess, so that
taking the most probable node again and again gives the best tree of every size (Medusa, Cai et
al. 2024; Sequoia, Chen et al. 2024). A random tree is what that is compared with.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush

from ppdbench.errors import ConfigError
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.tree import Node, Tree


def probabilities(tree: Tree, accuracies: Accuracies) -> tuple[float, ...]:
    """Return each node's probability to be accepted: it and all nodes above it are right."""
    check_known(tree, accuracies)
    accepted: dict[Node, float] = {(): 1.0}
    for path in tree.paths:
        accepted[path] = accepted[path[:-1]] * accuracies.p(len(path) - 1, path[-1])
    return tuple(accepted[path] for path in tree.paths)


def check_known(tree: Tree, accuracies: Accuracies) -> None:
    """Refuse a tree of guesses that nobody counted."""
    if tree.depth > accuracies.distances:
        raise ConfigError(
            f"the tree is {tree.depth} deep, but accuracies reach {accuracies.distances} tokens "
            "ahead; calibrate again or use a shallower tree"
        )
    for path in tree.paths:
        counted = len(accuracies.hits[len(path) - 1])
        if path[-1] >= counted:
            raise ConfigError(
                f"node {list(path)}: the accuracies at distance {len(path)} are those of ranks "
                f"0..{counted - 1}; calibrate again or use a narrower tree"
            )


def expected_tokens(tree: Tree, accuracies: Accuracies) -> float:
    """Tokens of a step, the model's own included."""
    return 1 + sum(probabilities(tree, accuracies))


def grow(accuracies: Accuracies, size: int, depth: int | None = None) -> Tree:
    """The best tree of `size` nodes, in the order of their probability.

    A guess that was never right adds nothing, so the tree ends where only such are left.
    """
    waiting: list[tuple[float, int, Node]] = []
    nodes: list[Node] = []

    def line_up(below: Node, probability: float) -> None:
        for path in _children(below, accuracies, depth):
            likely = probability * accuracies.p(len(below), path[-1])
            if likely > 0:
                # Of equals the shallow one first, then the likelier guess.
                heappush(waiting, (-likely, len(path), path))

    line_up((), 1.0)
    while waiting and len(nodes) < size:
        negative, _, path = heappop(waiting)
        nodes.append(path)
        line_up(path, -negative)
    return Tree(tuple(nodes))


def grow_random(
    accuracies: Accuracies, size: int, depth: int | None = None, *, seed: int = 0
) -> Tree:
    """A tree of `size` nodes, each hung on any of those before it as its likeliest child left."""
    draw = random.Random(seed)
    nodes: list[Node] = []
    open_: list[list[Node]] = []  # of every node that takes more, the children that are left

    def take_in(below: Node) -> None:
        children = _children(below, accuracies, depth)
        if children:
            j = len(below)
            open_.append(sorted(children, key=lambda path: (accuracies.p(j, path[-1]), -path[-1])))

    take_in(())
    while open_ and len(nodes) < size:
        children = draw.choice(open_)
        nodes.append(children.pop())
        if not children:
            open_.remove(children)
        take_in(nodes[-1])
    return Tree(tuple(nodes))


def _children(path: Node, accuracies: Accuracies, depth: int | None) -> list[Node]:
    """List all that may hang on a node: a child for each rank that was counted."""
    deepest = accuracies.distances if depth is None else depth
    if len(path) == deepest:
        return []
    return [(*path, rank) for rank in range(len(accuracies.hits[len(path)]))]
