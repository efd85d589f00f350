"""The choice of the tree to verify: one asked for, one of so many rows, or the add-on's own."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from ppdbench.errors import ConfigError
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.curve import TreePlan
from ppdbench.trees.dynamic import DynamicTree, load_tree
from ppdbench.trees.static import grow
from ppdbench.trees.tree import Tree

FILE = "tree.json"  # in the folder of an add-on
CALIBRATION = "calibration.json"  # there, too: how often its guesses are right
SIZE = 16  # nodes
ROWS = 24  # nodes and prompt tokens, the newest token included
RANKS = 8
OF = 10_000


def choose(method: str, asked: str, folder: Path, depth: int, capacity: int) -> Tree:
    """The tree asked for, by its file or its rows; else the one beside an add-on or a general one.

    `depth` is how far the method guesses, `capacity` how many rows the cache has.
    """
    beside = folder / FILE
    if asked.isdecimal():
        tree = _of_rows(method, int(asked), folder, depth, capacity)
        assert isinstance(tree, Tree), f"{method} verifies dynamic trees"
        return tree
    if asked or beside.is_file():
        return Tree.load(asked or beside, max_depth=depth, max_size=capacity)
    return grow(general(depth), min(SIZE, capacity))


def _of_rows(
    method: str, rows: int, folder: Path, depth: int, capacity: int, per_guess: int | None = None
) -> Tree | DynamicTree:
    """The best tree whose passes have so many rows, by the accuracies that an add-on came with.

    It is what `tree build --size` makes; typical accuracies stand in where none were measured.
    """
    if rows > capacity:
        raise ConfigError(
            f"{method}: tree={rows}: the cache has room for {capacity} rows; use a smaller tree"
        )
    measured = folder / CALIBRATION
    known = Accuracies.load(measured) if measured.is_file() else general(depth)
    plan = TreePlan.of(replace(known, method=method), min(depth, known.distances), per_guess)
    kind = plan.kinds[0]
    tree = plan.tree(kind, rows)
    if tree is None:
        raise ConfigError(
            f"{method}: tree={rows}: no tree has so few rows; use {plan.smallest(kind)} or more"
        )
    return tree


def used_parts(addon: str, tree: str, folder: Path, model: str) -> dict[str, str]:
    """Name the add-on and the tree that a method takes where it was left to choose."""
    beside = FILE if (folder / FILE).is_file() else "a general one"
    return {"addon": addon or model, "tree": tree or beside}


def choose_dynamic(
    method: str, asked: str, folder: Path, reach: int, capacity: int, per_guess: int
) -> DynamicTree:
    """The same for prompt tokens that guess `reach` tokens ahead, with a tree for each state.

    Each takes `per_guess` rows. In a static tree every node has all of them.
    """
    beside = folder / FILE
    if asked.isdecimal():
        tree = _of_rows(method, int(asked), folder, reach, capacity, per_guess)
    elif asked or beside.is_file():
        tree = load_tree(asked or beside, max_depth=reach, max_size=capacity)
    else:
        tree = _general_of_rows(method, reach, capacity, per_guess)
    return tree if isinstance(tree, DynamicTree) else DynamicTree.uniform(tree, reach)


def _general_of_rows(method: str, reach: int, capacity: int, per_guess: int) -> Tree | DynamicTree:
    """A tree of typical accuracies, with passes of no more than `ROWS` rows if one is so small."""
    plan = TreePlan.of(replace(general(reach), method=method), reach, per_guess)
    kind = plan.kinds[0]
    rows = max(min(ROWS, capacity), plan.smallest(kind))
    if rows > capacity:
        raise ConfigError(f"{method}: a pass takes {rows} rows, and the cache has {capacity}")
    tree = plan.tree(kind, rows)
    assert tree is not None, "no tree is smaller than the smallest"
    return tree


def check_top(method: str, top: int, vocab_size: int) -> None:
    """Refuse a tree that takes more guesses at a distance than there are tokens."""
    if top > vocab_size:
        raise ConfigError(
            f"{method}: the tree takes {top} guesses at a distance, but the vocabulary has "
            f"{vocab_size} entries"
        )


def fingerprint(tree: Tree | DynamicTree) -> str:
    """A hash of its nodes."""
    shape = tree.paths if isinstance(tree, Tree) else tree.states
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]


def general(depth: int) -> Accuracies:
    """Return typical accuracies of trained guesses, where nobody has measured these.

    They are right less often with every token further ahead, and with every rank.
    """
    hits = [[round(OF * 0.6 * 0.7**j / (1 + r) ** 2) for r in range(RANKS)] for j in range(depth)]
    return Accuracies("general", tuple(map(tuple, hits)), OF)
