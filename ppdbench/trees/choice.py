"""The choice of the tree to verify: the one asked for, or one that came with what was trained."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ppdbench.errors import ConfigError
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import DynamicTree, load_tree, search
from ppdbench.trees.static import grow
from ppdbench.trees.tree import Tree

FILE = "tree.json"  # in the folder of an add-on
SIZE = 16  # nodes
ROWS = 24  # nodes and prompt tokens, the newest token included
RANKS = 8
OF = 10_000


def choose(asked: str, folder: Path, depth: int, capacity: int) -> Tree:
    """The tree in the file `asked`; else the one beside an add-on; else a general one.

    `depth` is how far the method guesses, `capacity` how many rows the cache has.
    """
    beside = folder / FILE
    if asked or beside.is_file():
        return Tree.load(asked or beside, max_depth=depth, max_size=capacity)
    return grow(general(depth), min(SIZE, capacity))


def used_parts(addon: str, tree: str, folder: Path, model: str) -> dict[str, str]:
    """Name the add-on and the tree that a method takes where it was left to choose."""
    beside = FILE if (folder / FILE).is_file() else "a general one"
    return {"addon": addon or model, "tree": tree or beside}


def choose_dynamic(asked: str, folder: Path, reach: int, capacity: int) -> DynamicTree:
    """The same for prompt tokens that guess `reach` tokens ahead, with a tree for each state.

    In a static tree every node has all of them.
    """
    beside = folder / FILE
    if asked or beside.is_file():
        tree = load_tree(asked or beside, max_depth=reach, max_size=capacity)
        return tree if isinstance(tree, DynamicTree) else DynamicTree.uniform(tree, reach)
    return search(general(reach), ROWS)


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
