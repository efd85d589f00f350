"""Drafts: the tokens a strategy proposes to follow the newest one, as a chain or a tree.

What depends on the shape of a draft alone is worked out once per shape: strategies propose
the same tree again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ppdbench.errors import DraftError

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.engine.masks import TrainedRows


@dataclass(frozen=True)
class Computed:
    """Work on a draft that is done already: the output of the first `layers` layers.

    `hidden` [1, 1 + n, hidden] covers the newest token and every drafted one, and the cache
    rows of those layers hold them.
    """

    hidden: Tensor
    layers: int


@dataclass(frozen=True)
class Insertion:
    """Rows that join a pass without being tokens, to guess what comes next.

    The rows of a pass are numbered: 0 is the newest token, then the draft's nodes, then what
    was inserted, in order. New rows join after `layer` layers (0: as embeddings). `states`
    makes them, [1, new, hidden], of what that layer gave for the rows so far, [1, rows,
    hidden]. A new row sees the whole context, itself and the rows that `sees` names; its state
    may depend on no other rows either, so that a draft can lose nodes. It stands `depths`
    places after the newest token. Tokens never see it, and the cache does not keep it. With
    `given` the last of the new rows have keys and values of their own; they see no others.
    """

    layer: int
    states: Callable[[Tensor], Tensor]
    sees: tuple[tuple[int, ...], ...]
    depths: tuple[int, ...]
    given: TrainedRows | None = None

    def __len__(self) -> int:
        return len(self.depths)


@dataclass(frozen=True)
class Draft:
    """Tokens to verify in one pass.

    Node i hangs on node `parents[i]`, or on the newest token where that is -1; without
    `parents` the nodes are a chain. The last `riders` nodes pass through the model with the
    others and their predictions come back, but they are never accepted. `probabilities`
    [families, vocab] says what tokens were drawn from, where they were drawn: a row for each
    of `families`, whose members were drawn one after another, none of them twice.
    `insertions` join the pass layer by layer, the lowest first.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    riders: int = 0
    computed: Computed | None = None
    probabilities: Tensor | None = None
    insertions: tuple[Insertion, ...] = ()

    @classmethod
    def empty(cls) -> Draft:
        """Make an empty draft: the pass yields the target's own token alone."""
        return EMPTY

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        computed: Computed | None = None,
        probabilities: Tensor | None = None,
        insertions: Sequence[Insertion] = (),
    ) -> Draft:
        """Make a draft of tokens that follow one another."""
        return cls(
            tuple(tokens),
            computed=computed,
            probabilities=probabilities,
            insertions=tuple(insertions),
        )

    @classmethod
    def tree(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        *,
        riders: int = 0,
        probabilities: Tensor | None = None,
        insertions: Sequence[Insertion] = (),
    ) -> Draft:
        """Make a draft of continuations that branch."""
        return cls(
            tuple(tokens),
            tuple(parents),
            riders,
            probabilities=probabilities,
            insertions=tuple(insertions),
        )

    @classmethod
    def merged(cls, drafts: Iterable[Draft]) -> Draft:
        """Make the tree of all that some drafts propose; what begins alike is shared."""
        nodes: dict[tuple[int, int], int] = {}  # by parent and token
        for draft in drafts:
            if draft.riders or draft.insertions:
                raise DraftError("riders and inserted rows of a draft cannot be merged")
            if draft.probabilities is not None:
                raise DraftError("drafts whose tokens were drawn cannot be merged")
            place = {-1: -1}
            for node, (token, parent) in enumerate(zip(draft.tokens, draft.lineage, strict=True)):
                place[node] = nodes.setdefault((place[parent], token), len(nodes))
        return cls.tree([token for _, token in nodes], [parent for parent, _ in nodes])

    def __len__(self) -> int:
        return len(self.tokens)

    def of_tokens(self, rows: Tensor) -> Tensor:
        """Pick, of the rows of its pass [1, row, ...], those of the newest token and the nodes."""
        return rows[:, : 1 + len(self)] if self.insertions else rows

    @property
    def proposed(self) -> int:
        """The number of tokens that may be accepted."""
        return len(self.tokens) - self.riders

    @property
    def rows(self) -> int:
        """The number of rows its pass has in the end: the newest token, nodes, inserted rows."""
        return 1 + len(self.tokens) + sum(map(len, self.insertions))

    @property
    def lineage(self) -> tuple[int, ...]:
        """The parent of each node, of a chain too."""
        if self.parents is None:
            return tuple(range(-1, len(self.tokens) - 1))
        return self.parents

    @property
    def families(self) -> tuple[int, ...]:
        """The nodes that others hang on, in order; the newest token is -1."""
        return _families(self.lineage)

    @property
    def depths(self) -> tuple[int, ...]:
        """The distance of each node from the newest token, from 1."""
        if self.parents is None:
            return tuple(range(1, len(self.tokens) + 1))
        return _depths(self.parents)

    def check(self, vocab_size: int, n_layers: int | None = None) -> None:
        """Refuse what no pass could verify."""
        if self.tokens:
            self._check_tokens(vocab_size)
        if not 0 <= self.riders <= len(self.tokens):
            raise DraftError(f"{self.riders} riders in a draft of {len(self.tokens)} nodes")
        if self.parents is not None:
            self._check_tree(self.parents)
        self._check_tensors(vocab_size)
        if self.insertions:
            self._check_insertions(n_layers)

    def _check_tokens(self, vocab_size: int) -> None:
        tokens = self.tokens
        if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size:
            return
        for place, token in enumerate(tokens):
            if isinstance(token, bool) or not isinstance(token, int):
                raise DraftError(f"draft token {place} is {token!r}, not a token id")
            if not 0 <= token < vocab_size:
                raise DraftError(f"draft token {place} is {token}; use 0..{vocab_size - 1}")

    def _check_tree(self, parents: tuple[int, ...]) -> None:
        if len(parents) != len(self.tokens):
            raise DraftError(f"{len(parents)} parents for {len(self.tokens)} draft tokens")
        _check_parents(parents)
        edges = list(zip(parents, self.tokens, strict=True))[: self.proposed]
        if len(set(edges)) < len(edges):
            node = next(n for n, edge in enumerate(edges) if edge in edges[:n])
            twin = edges.index(edges[node])
            raise DraftError(f"draft nodes {twin} and {node} are the same continuation")

    def _check_tensors(self, vocab_size: int) -> None:
        chain = self.parents is None and not self.riders
        if self.computed is not None:
            rows = self.computed.hidden.shape[1]
            if not chain or rows != 1 + len(self.tokens):
                raise DraftError(
                    f"hidden states of {rows} rows for a {'chain' if chain else 'tree'} of "
                    f"{len(self.tokens)} tokens; use a chain and one row more than tokens"
                )
        if self.probabilities is not None:
            shape, families = tuple(self.probabilities.shape), len(self.families)
            if self.riders or shape != (families, vocab_size):
                kind = "chain" if self.parents is None else "tree"
                raise DraftError(
                    f"probabilities of shape {shape} for a {kind} of {len(self.tokens)} tokens; "
                    f"use a row for each parent, ({families}, {vocab_size}), and no riders"
                )

    def _check_insertions(self, n_layers: int | None) -> None:
        if self.computed is not None:
            raise DraftError("insertions in a draft of which some layers are computed; use either")
        layers = [insertion.layer for insertion in self.insertions]
        if layers != sorted(layers) or layers[0] < 0:
            raise DraftError(f"insertions at layers {layers}; use 0 or more, the lowest first")
        if n_layers is not None and layers[-1] >= n_layers:
            raise DraftError(f"an insertion after {layers[-1]} layers; use 0..{n_layers - 1}")
        before = 1 + len(self.tokens)
        for insertion in self.insertions:
            _check_rows(before, insertion.sees, insertion.depths)
            before += len(insertion)

    def within(self, room: int) -> Draft:
        """Drop the nodes deeper than `room`: those could not be committed any more.

        What was to be inserted where a lost node is seen is lost with it.
        """
        depths = self.depths
        if max(depths, default=0) <= room:
            return self
        kept = [node for node, depth in enumerate(depths) if depth <= room]
        if not kept:
            return EMPTY
        insertions = _without(self.insertions, 1 + len(self.tokens), [0, *(1 + n for n in kept)])
        if self.parents is None:
            return self._head(len(kept), insertions)
        place = {-1: -1, **{node: i for i, node in enumerate(kept)}}
        drawn = self.probabilities
        if drawn is not None:
            left = sorted({self.parents[node] for node in kept})
            drawn = drawn[[self.families.index(parent) for parent in left]]
        return replace(
            self,
            tokens=tuple(self.tokens[node] for node in kept),
            parents=tuple(place[self.parents[node]] for node in kept),
            riders=sum(node >= self.proposed for node in kept),
            probabilities=drawn,
            insertions=insertions,
        )

    def _head(self, n: int, insertions: tuple[Insertion, ...]) -> Draft:
        """The first `n` tokens of a chain."""
        computed = self.computed
        if computed is not None:
            computed = Computed(computed.hidden[:, : n + 1], computed.layers)
        drawn = None if self.probabilities is None else self.probabilities[:n]
        riders = max(0, n - self.proposed)
        return Draft(self.tokens[:n], None, riders, computed, drawn, insertions)


EMPTY = Draft()


@lru_cache(maxsize=256)
def offspring(parents: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The nodes that hang on the newest token, then those that hang on each node."""
    children: list[list[int]] = [[] for _ in range(1 + len(parents))]
    for node, parent in enumerate(parents):
        children[1 + parent].append(node)
    return tuple(map(tuple, children))


@lru_cache(maxsize=256)
def _families(parents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(parents)))


@lru_cache(maxsize=256)
def _depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return tuple(depths)


@lru_cache(maxsize=256)
def _check_parents(parents: tuple[int, ...]) -> None:
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise DraftError(f"draft node {node} names parent {parent}; use -1..{node - 1}")


@lru_cache(maxsize=256)
def _check_rows(before: int, sees: tuple[tuple[int, ...], ...], depths: tuple[int, ...]) -> None:
    """Refuse new rows behind `before` others that see what is not there."""
    if not depths or len(sees) != len(depths):
        raise DraftError(f"an insertion of {len(sees)} rows with {len(depths)} depths")
    last = before + len(sees) - 1
    for row, (seen, depth) in enumerate(zip(sees, depths, strict=True), start=before):
        outside = [other for other in seen if not 0 <= other <= last]
        if outside:
            raise DraftError(f"inserted row {row} sees row {outside[0]}; use 0..{last}")
        if depth < 0:
            raise DraftError(f"inserted row {row} stands at depth {depth}; use 0 or more")


def _without(
    insertions: tuple[Insertion, ...], before: int, kept: list[int]
) -> tuple[Insertion, ...]:
    """Insertions where only the rows `kept` are left of the `before` rows ahead of them."""
    left = []
    for insertion in insertions:
        stay = _staying(insertion, before, set(kept))
        if stay:
            left.append(_cut(insertion, before, tuple(kept), stay))
        kept = kept + [before + new for new in stay]
        before += len(insertion)
    return tuple(left)


def _staying(insertion: Insertion, before: int, kept: set[int]) -> list[int]:
    """The new rows that see nothing that is gone, each other included."""
    stay = list(range(len(insertion)))
    while True:
        there = kept | {before + new for new in stay}
        still = [new for new in stay if there.issuperset(insertion.sees[new])]
        if still == stay:
            return stay
        stay = still


def _cut(insertion: Insertion, before: int, kept: tuple[int, ...], stay: list[int]) -> Insertion:
    """The new rows `stay` alone, behind the rows `kept` alone."""
    rows = [*kept, *(before + new for new in stay)]
    place = {row: i for i, row in enumerate(rows)}

    def states(hidden: Tensor) -> Tensor:
        whole = hidden.new_zeros(1, before, hidden.shape[-1])
        whole[:, kept] = hidden
        return insertion.states(whole)[:, stay]

    return Insertion(
        insertion.layer,
        states,
        tuple(tuple(place[row] for row in insertion.sees[new]) for new in stay),
        tuple(insertion.depths[new] for new in stay),
        insertion.given,
    )
