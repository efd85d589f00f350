"""What a strategy proposes: tokens that may follow the newest one, as a chain or a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ppdbench.errors import DraftError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Computed:
    """Work on a draft that is done already: the output of the first `layers` layers.

    `hidden` [1, 1 + n, hidden] covers the newest token and every drafted one, and the cache
    rows of those layers hold them.
    """

    hidden: Tensor
    layers: int


@dataclass(frozen=True)
class Draft:
    """Tokens to verify in one pass.

    Node i hangs on node `parents[i]`, or on the newest token where that is -1; without
    `parents` the nodes are a chain. The last `riders` nodes pass through the model with the
    others and their predictions come back, but they are never accepted. `probabilities`
    [n, vocab] says what a chain's tokens were drawn from, where they were drawn.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    riders: int = 0
    computed: Computed | None = None
    probabilities: Tensor | None = None

    @classmethod
    def empty(cls) -> Draft:
        """No proposal: the pass yields the target's own token alone."""
        return EMPTY

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        computed: Computed | None = None,
        probabilities: Tensor | None = None,
    ) -> Draft:
        """One token after another."""
        return cls(tuple(tokens), computed=computed, probabilities=probabilities)

    @classmethod
    def tree(cls, tokens: Sequence[int], parents: Sequence[int], *, riders: int = 0) -> Draft:
        """Branching continuations."""
        return cls(tuple(tokens), tuple(parents), riders)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def proposed(self) -> int:
        """How many tokens may be accepted."""
        return len(self.tokens) - self.riders

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many tokens after the newest one each node stands, from 1."""
        if self.parents is None:
            return tuple(range(1, len(self.tokens) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def check(self, vocab_size: int) -> None:
        """Refuse what no pass could verify."""
        for place, token in enumerate(self.tokens):
            if isinstance(token, bool) or not isinstance(token, int):
                raise DraftError(f"draft token {place} is {token!r}, not a token id")
            if not 0 <= token < vocab_size:
                raise DraftError(f"draft token {place} is {token}; use 0..{vocab_size - 1}")
        if not 0 <= self.riders <= len(self.tokens):
            raise DraftError(f"{self.riders} riders in a draft of {len(self.tokens)} nodes")
        if self.parents is not None:
            self._check_tree(self.parents)
        self._check_tensors(vocab_size)

    def _check_tree(self, parents: tuple[int, ...]) -> None:
        if len(parents) != len(self.tokens):
            raise DraftError(f"{len(parents)} parents for {len(self.tokens)} draft tokens")
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise DraftError(f"draft node {node} names parent {parent}; use -1..{node - 1}")
        seen: dict[tuple[int, int], int] = {}
        for node in range(self.proposed):
            twin = seen.setdefault((parents[node], self.tokens[node]), node)
            if twin != node:
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
            shape = tuple(self.probabilities.shape)
            if not chain or shape != (len(self.tokens), vocab_size):
                raise DraftError(
                    f"probabilities of shape {shape} for a {'chain' if chain else 'tree'} of "
                    f"{len(self.tokens)} tokens; use a chain and [tokens, vocabulary]"
                )

    def within(self, room: int) -> Draft:
        """Without the nodes deeper than `room`: those could not be committed any more."""
        kept = [node for node, depth in enumerate(self.depths) if depth <= room]
        if len(kept) == len(self.tokens):
            return self
        if not kept:
            return EMPTY
        if self.parents is None and not self.riders:
            return self._head(len(kept))
        place = {-1: -1, **{node: i for i, node in enumerate(kept)}}
        parents = [node - 1 for node in range(len(self))] if self.parents is None else self.parents
        return replace(
            self,
            tokens=tuple(self.tokens[node] for node in kept),
            parents=tuple(place[parents[node]] for node in kept),
            riders=sum(node >= self.proposed for node in kept),
        )

    def _head(self, n: int) -> Draft:
        """The first `n` tokens of a chain."""
        computed = self.computed
        if computed is not None:
            computed = Computed(computed.hidden[:, : n + 1], computed.layers)
        drawn = None if self.probabilities is None else self.probabilities[:n]
        return Draft(self.tokens[:n], computed=computed, probabilities=drawn)


EMPTY = Draft()
