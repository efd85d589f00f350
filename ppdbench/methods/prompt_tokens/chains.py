"""A tree of guesses with a chain of prompt tokens behind each of its nodes, as one insertion.

Nothing of it changes from step to step but the tokens that fill the tree, so that it is worked
out once and the masks made of it are found again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ppdbench.decoding.draft import Insertion
from ppdbench.methods.prompt_tokens.network import Prompts
from ppdbench.trees.dynamic import TreeState
from ppdbench.trees.tree import Tree


class ChainPattern:
    """One tree with its chains; `rows` of a pass, the newest token included.

    `chains` says for the newest token and then for each node where among the inserted rows its
    chain begins and how many prompt tokens it has.
    """

    def __init__(self, tree: Tree, counts: Sequence[int], prompts: Prompts) -> None:
        self.tree, self.prompts = tree, prompts
        lengths = [prompts.chain.rows(count) for count in counts]
        firsts = [sum(lengths[:node]) for node in range(len(lengths))]
        self.chains = tuple(zip(firsts, counts, strict=True))
        self.insertion = self._insertion(lengths)
        self.rows = len(lengths) + len(self.insertion)

    def _insertion(self, lengths: Sequence[int]) -> Insertion:
        """Insert all chains, then the prefix, so far ahead that every window holds it."""
        chain = self.prompts.chain
        first, prefix = len(lengths), len(lengths) + sum(lengths)
        sees: list[tuple[int, ...]] = []
        depths: list[int] = []
        for line, length in zip(self.tree.lines, lengths, strict=True):
            for row in range(length):
                own = (first + other for other in chain.sees[row])
                sees.append((*line, *own, *(prefix + extra for extra in chain.sees_prefix(row))))
                depths.append(len(line) - 1 + chain.depths[row])
            first += length
        extra, deepest = chain.prompts * chain.prefix, self.tree.depth + chain.prompts
        states = self._states(lengths, extra)
        return Insertion(
            0,
            lambda hidden: states,
            (*sees, *((),) * extra),
            (*depths, *(deepest,) * extra),
            self.prompts.prefix,
        )

    def _states(self, lengths: Sequence[int], extra: int) -> Tensor:
        """Return the rows' input to the first layer; nothing reads those of the prefix."""
        words = self.prompts.embeddings
        empty = words.new_zeros(extra, words.shape[-1])
        return torch.cat([*(words[:length] for length in lengths), empty])[None]


def first_pattern(known: int, reach: int, prompts: Prompts) -> ChainPattern:
    """A chain of tokens that are known, with so many prompt tokens behind the last."""
    chain = Tree(tuple((0,) * depth for depth in range(1, known)))
    return ChainPattern(chain, (*(0,) * (known - 1), reach), prompts)


def within_any_room(state: TreeState, prompts: Prompts) -> list[ChainPattern]:
    """The tree of a state without the nodes below depth 0, 1 and so on, up to all of it."""
    cut = (state.within(depth) for depth in range(1 + state.tree.depth))
    return [ChainPattern(each.tree, each.prompts, prompts) for each in cut]
