"""A sparse tree of guesses, as data.

Medusa (Cai et al. 2024): guesses at several distances are combined into continuations, and of
all combinations only those that are likely to be right are verified. A node is the path of
ranks that leads to it from the newest token, which is not listed itself: (0,) is the likeliest
guess at distance 1, (0, 2) after it the third likeliest at distance 2. A tree holds no tokens.
It is found once, kept as JSON and filled with the guesses of every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_versioned, write_versioned
from ppdbench.files.keys import Keys, kind
from ppdbench.trees.guessing import guessers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT, VERSION = "ppdbench-tree", 1

Node = tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """Nodes as paths of ranks, parents before their children."""

    paths: tuple[Node, ...]

    def __post_init__(self) -> None:
        known: set[Node] = {()}
        for path in self.paths:
            if not all(type(rank) is int and rank >= 0 for rank in path):
                raise ConfigError(f"node {list(path)}: ranks are whole numbers from 0")
            if not path:
                raise ConfigError("a node has an empty path; the newest token is not listed")
            if path in known:
                raise ConfigError(f"node {list(path)} stands there twice")
            if path[:-1] not in known:
                later = path[:-1] in self.paths
                trouble = "stands before its parent" if later else "has no parent"
                raise ConfigError(
                    f"node {list(path)} {trouble} {list(path[:-1])}; list parents first"
                )
            known.add(path)

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The node that each one hangs on, -1 for the newest token."""
        place = {path: node for node, path in enumerate(self.paths)}
        return tuple(place.get(path[:-1], -1) for path in self.paths)

    @property
    def is_chain(self) -> bool:
        """True if every node hangs on the one before it."""
        return self.parents == tuple(range(-1, len(self) - 1))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each node among the guesses at its distance, from 0."""
        return tuple(path[-1] for path in self.paths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The distance at which each node is a guess, from 1."""
        return tuple(map(len, self.paths))

    @cached_property
    def lines(self) -> tuple[tuple[int, ...], ...]:
        """The rows from the newest token, row 0, to each row of a pass, both included."""
        lines: list[tuple[int, ...]] = [(0,)]
        for row, parent in enumerate(self.parents, start=1):
            lines.append((*lines[1 + parent], row))
        return tuple(lines)

    @cached_property
    def depth(self) -> int:
        """The farthest distance guessed at."""
        return max(self.depths, default=0)

    @cached_property
    def top(self) -> int:
        """The number of guesses it takes at a distance."""
        return 1 + max(self.ranks, default=-1)

    def within(self, depth: int) -> Tree:
        """Drop the nodes that lie deeper."""
        return Tree(tuple(path for path in self.paths if len(path) <= depth))

    def first(self, n: int) -> Tree:
        """Keep its first `n` nodes: of a grown tree the best ones."""
        return self if n >= len(self) else Tree(self.paths[:n])

    def fill(self, guesses: Tensor) -> list[int]:
        """The token of every node; `guesses` [distance, top] are ids, the likeliest first.

        The host waits once, for all of them.
        """
        distances, top = guesses.shape
        if self.depth > distances or self.top > top:
            raise ConfigError(
                f"the tree takes {self.top} guesses at {self.depth} distances; there are {top} "
                f"at {distances}"
            )
        places = self._places(top, guesses.device)
        tokens: list[int] = guesses.flatten().index_select(0, places).tolist()
        return tokens

    def _places(self, top: int, device: torch.device) -> Tensor:
        """Return the place of each node's token in guesses [distance, top] laid out in one row."""
        import torch

        key = (top, device)
        if key not in self._known_places:
            flat = [(d - 1) * top + r for d, r in zip(self.depths, self.ranks, strict=True)]
            self._known_places[key] = torch.tensor(flat, dtype=torch.long, device=device)
        return self._known_places[key]

    @cached_property
    def _known_places(self) -> dict[tuple[int, torch.device], Tensor]:
        return {}

    def check(self, *, max_depth: int | None = None, max_size: int | None = None) -> None:
        """Refuse a tree that asks for guesses nobody makes, or for rows that no cache has."""
        if max_depth is not None and self.depth > max_depth:
            raise ConfigError(
                f"the tree is {self.depth} deep, but guesses reach {max_depth} tokens ahead; "
                f"use a tree of depth {max_depth} or less"
            )
        if max_size is not None and len(self) > max_size:
            raise ConfigError(
                f"the tree has {len(self)} nodes, but the cache has room for {max_size}; use a "
                "smaller tree"
            )

    @classmethod
    def load(
        cls, path: str | Path, *, max_depth: int | None = None, max_size: int | None = None
    ) -> Tree:
        """The tree in a file, checked against what the method that asks for it can do."""
        keys = open_tree(path)
        if "states" in keys.names():
            able = " and ".join(guessers("dynamic_trees"))
            raise keys.error(
                f"a dynamic tree, which only {able} decodes with; make another "
                "with `ppdbench tree build --method static`"
            )
        paths = read_paths(keys)
        keys.refuse_the_rest()
        with keys.telling():
            if not paths:
                raise ConfigError("there are no nodes; list at least [0]")
            tree = cls(paths)
            tree.check(max_depth=max_depth, max_size=max_size)
        return tree

    def save(self, path: str | Path) -> None:
        """Write what `load` reads."""
        write_versioned(Path(path), FORMAT, VERSION, {"paths": listed(self.paths)})


def open_tree(path: str | Path) -> Keys:
    """The keys of a tree file, static or dynamic."""
    missing = "`ppdbench tree build` makes one"
    return read_versioned(Path(path).expanduser(), "tree file", missing, FORMAT, VERSION)


def read_paths(keys: Keys) -> tuple[Node, ...]:
    """The nodes that a file lists; whether they are a tree is for `Tree` to say."""
    items = keys.items("paths")
    for item in items:
        if not isinstance(item, list):
            raise keys.error(f"paths holds {kind(item)}; a node is a list of ranks like [0, 2]")
    return tuple(map(tuple, items))


def listed(paths: Iterable[Node]) -> list[list[int]]:
    """Paths as JSON has them."""
    return [list(path) for path in paths]
