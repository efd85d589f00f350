"""The size of tree that pays: Speedup(n) = tau(n) / L_fp(n), and the n where it is largest.

A size is the number of rows of a pass: the newest token, the nodes and what is inserted to
guess with. How many rows the last takes is up to the method, which says so where it is registered
(`Guessing`). Static and random trees carry as much at every node, only dynamic ones save some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ppdbench.errors import ConfigError, UnknownName
from ppdbench.stats import Ratio
from ppdbench.trees import dynamic, static
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import DynamicTree
from ppdbench.trees.expected import expected
from ppdbench.trees.guessing import guessers, guessing_of
from ppdbench.trees.latency import Latency
from ppdbench.trees.tree import Tree

KINDS = ("dynamic", "static", "random")


@dataclass(frozen=True)
class TreePlan:
    """All that trees of a method are made from, whatever their size.

    `depth` is how far guesses reach, `inserted` how many rows each of them takes per node.
    """

    accuracies: Accuracies
    depth: int
    inserted: float
    seed: int = 0

    @classmethod
    def of(
        cls,
        accuracies: Accuracies,
        depth: int | None = None,
        inserted: float | None = None,
        seed: int = 0,
    ) -> TreePlan:
        """Make the plan as asked for, the rest as the method has it."""
        reach = accuracies.distances
        if depth is not None and not 1 <= depth <= reach:
            raise ConfigError(
                f"--depth {depth}, but the guesses of {accuracies.method} reach {reach} tokens "
                f"ahead; use 1..{reach}"
            )
        if inserted is None:
            inserted = guessing_of(accuracies.method).rows_per_guess
        elif not 0 <= inserted < math.inf:
            raise ConfigError(f"--rows-per-guess {inserted}: use 0 or more")
        return cls(accuracies, depth or reach, inserted, seed)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of trees that the method can decode with, the best first."""
        return KINDS if guessing_of(self.accuracies.method).dynamic_trees else KINDS[1:]

    def check(self, kind: str) -> None:
        """Refuse a kind of tree that there is not, or not for this method."""
        if kind not in KINDS:
            raise UnknownName("kind of tree", kind, KINDS)
        if kind not in self.kinds:
            able = " and ".join(guessers("dynamic_trees"))
            raise ConfigError(
                f"dynamic trees are for {able}, and these are the accuracies of "
                f"{self.accuracies.method}; use --method {' or '.join(self.kinds)}"
            )
        if kind == "dynamic" and (self.inserted < 1 or self.inserted % 1):
            raise ConfigError(
                f"--rows-per-guess {self.inserted:g}: a prompt token takes as many rows as it has "
                "embeddings; use 1, 2, ..."
            )

    def tree(self, kind: str, size: int) -> Tree | DynamicTree | None:
        """The tree of a kind whose passes have `size` rows at most; None: they have no node."""
        if size < self.smallest(kind):
            return None
        if kind == "dynamic":
            wide = dynamic.search(
                self.accuracies, size, self.depth, rows_per_prompt=int(self.inserted)
            )
            return wide if wide.nodes else None
        nodes = int(size / self._rows_of_node) - 1
        if kind == "static":
            tree = static.grow(self.accuracies, nodes, self.depth)
        else:
            tree = static.grow_random(self.accuracies, nodes, self.depth, seed=self.seed)
        return tree if len(tree) else None

    def smallest(self, kind: str) -> int:
        """The rows of a pass over the newest token and one node."""
        return math.ceil(2 * (1 + self.inserted if kind == "dynamic" else self._rows_of_node))

    @property
    def _rows_of_node(self) -> float:
        """Rows of a node that carries everything it may."""
        return 1 + self.depth * self.inserted

    def rows(self, tree: Tree | DynamicTree) -> int:
        """The most rows that a pass over the tree has."""
        if isinstance(tree, DynamicTree):
            return tree.rows(int(self.inserted))
        return math.ceil((1 + len(tree)) * self._rows_of_node)

    def tokens(self, tree: Tree | DynamicTree) -> Ratio:
        """Tokens that a step with the tree gives, the model's own included: tau."""
        return expected(tree, self.accuracies)


@dataclass(frozen=True)
class SizePoint:
    """The best tree of a size and what it promises; how fast, once passes are timed.

    `nodes` count the newest token; `others` are the tokens of a step with trees of other kinds
    whose passes are no larger. The 95% interval of `tokens_per_step` is that of drawing other
    outputs to calibrate on; there is none where only counts are known.
    """

    size: int
    tree: Tree | DynamicTree
    rows: int
    nodes: int
    tokens_per_step: float
    others: dict[str, float]
    tokens_low: float | None = None
    tokens_high: float | None = None
    seconds: float | None = None
    speedup: float | None = None


def curve(plan: TreePlan, kind: str, sizes: Iterable[int]) -> list[SizePoint]:
    """A point for each size that has a tree of its own."""
    plan.check(kind)
    sizes = sorted(set(sizes))
    points: list[SizePoint] = []
    for size in sizes:
        tree = plan.tree(kind, size)
        if tree is not None and (not points or tree != points[-1].tree):
            points.append(_point(plan, kind, size, tree))
    if not points:
        raise ConfigError(
            f"no {kind} tree of {sizes[-1]} rows has a node; the newest token and one node take "
            f"{plan.smallest(kind)} rows, and a guess must have been right at least once"
        )
    return points


def _point(plan: TreePlan, kind: str, size: int, tree: Tree | DynamicTree) -> SizePoint:
    nodes = tree.nodes if isinstance(tree, DynamicTree) else len(tree)
    others = {
        other: 1.0 if (rival := plan.tree(other, size)) is None else plan.tokens(rival).value
        for other in plan.kinds
        if other != kind
    }
    tokens = plan.tokens(tree)
    return SizePoint(
        size, tree, plan.rows(tree), 1 + nodes, tokens.value, others, tokens.low, tokens.high
    )


def timed(points: Iterable[SizePoint], latency: Latency) -> list[SizePoint]:
    """The same with the time of their passes, and the speedup over greedy decoding."""
    return [
        replace(
            point,
            seconds=(seconds := latency.at(point.rows)),
            speedup=point.tokens_per_step * latency.at(1) / seconds,
        )
        for point in points
    ]


def fastest(points: Sequence[SizePoint]) -> SizePoint:
    """The point of the largest speedup, of equals the smallest tree."""
    return max(points, key=lambda point: point.speedup or 0.0)
