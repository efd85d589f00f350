"""Branching: the shape that drafts take while a draft network writes them, a pass per level.

Li et al. 2024. A dynamic tree (EAGLE-2) takes the probability that the network gives a whole
path as the chance that the path is accepted: at each level it goes on from the likeliest
nodes alone, and in the end verifies the likeliest of all it has found. A static tree (EAGLE-1)
has one shape for all contexts. Everything happens on the device until the host reads the
whole draft at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft
from ppdbench.decoding.sampling import Chooser
from ppdbench.errors import NumericalError
from ppdbench.methods.eagle.rows import NewestLevel
from ppdbench.trees.choice import fingerprint
from ppdbench.trees.tree import Tree


class DraftGrower(Protocol):
    """Makes drafts of at most `nodes` nodes and `depth` levels, with `spare` rows of guesses.

    `loaded` holds the fingerprint of the tree, if it came from a file.
    """

    depth: int
    nodes: int
    spare: int
    loaded: Mapping[str, str]

    def grow(self, branches: NewestLevel, room: int, chooser: Chooser) -> Draft:
        """A draft of what may follow, no deeper than `room`."""
        ...


class ChainGrower:
    """The likeliest token again and again, or a drawn one."""

    loaded: Mapping[str, str] = MappingProxyType({})

    def __init__(self, length: int) -> None:
        self.depth = self.nodes = self.spare = length

    def grow(self, branches: NewestLevel, room: int, chooser: Chooser) -> Draft:
        tokens: list[Tensor] = []
        peaks: list[Tensor] = []
        drawn: list[Tensor] = []
        for level in range(min(room, self.depth)):
            if level:
                branches.extend(torch.zeros_like(tokens[-1]), tokens[-1])
            logits = branches.logits()  # [1, draft vocabulary]
            peaks.append(logits.amax())
            token, source = chooser.draw(logits)
            tokens.append(branches.network.words(token)[0])
            if source is not None:
                drawn.append(branches.network.spread(source, 0.0))
        ids = _read(torch.cat(tokens), torch.stack(peaks))
        return Draft.chain(ids, probabilities=torch.cat(drawn) if drawn else None)


class DynamicGrower:
    """The likeliest paths: `top` continuations of each of the `top` likeliest nodes of a level."""

    loaded: Mapping[str, str] = MappingProxyType({})

    def __init__(self, depth: int, top: int, nodes: int) -> None:
        self.depth, self.top = depth, top
        self.nodes = min(nodes, top + (depth - 1) * top**2)
        self.spare = (depth - 1) * top

    def grow(self, branches: NewestLevel, room: int, chooser: Chooser) -> Draft:
        top = self.top
        tokens, scores = (found[0] for found in branches.likeliest(top))
        places = torch.arange(top, device=tokens.device)  # of the newest level, among all found
        origin = torch.zeros_like(places)
        found = [(tokens, scores, torch.full_like(places, -1))]
        for level in range(1, min(room, self.depth)):
            branches.extend(origin, tokens)
            more, likely = branches.likeliest(top)  # [top, top]
            words, totals = more.flatten(), (scores[:, None] + likely).flatten()
            found.append((words, totals, places.repeat_interleave(top)))
            scores, best = totals.topk(top)
            tokens, origin = words[best], best // top
            places = top + (level - 1) * top**2 + best
        all_tokens, all_scores, parents = (torch.cat(part) for part in zip(*found, strict=True))
        kept = self._likeliest(all_scores)
        # Where each node that was found stands among those that are kept.
        place = torch.full_like(parents, -1)
        place[kept] = torch.arange(len(kept), device=kept.device)
        above = parents[kept]
        hung = torch.where(above < 0, above, place[above])
        ids = _read(torch.cat([all_tokens[kept], hung]), all_scores)
        return Draft.tree(ids[: len(kept)], ids[len(kept) :])

    def _likeliest(self, scores: Tensor) -> Tensor:
        """The nodes with the best scores, in the order in which they were found.

        No path is likelier than its beginning; where both are equally likely, the stable sort
        puts the beginning first. So what is kept is a tree.
        """
        return scores.sort(descending=True, stable=True).indices[: self.nodes].sort().values


@dataclass(frozen=True)
class TreeLevel:
    """The nodes of a static tree at one depth.

    `origin` says which row of the pass before each was read from, `rank` which of the guesses
    there it is, `inner` which of them the next pass goes on from.
    """

    origin: Tensor
    rank: Tensor
    inner: Tensor


class StaticGrower:
    """The same shape at every step."""

    def __init__(self, tree: Tree, device: torch.device) -> None:
        self.tree = Tree(tuple(sorted(tree.paths, key=len)))
        self.depth, self.nodes, self.top = tree.depth, len(tree), tree.top
        self.loaded: Mapping[str, str] = {"tree": fingerprint(tree)}
        self.levels = _levels(self.tree, device)
        self.spare = sum(len(level.inner) for level in self.levels)

    def grow(self, branches: NewestLevel, room: int, chooser: Chooser) -> Draft:
        found: list[Tensor] = []
        peaks: list[Tensor] = []
        levels = self.levels[:room]
        for level in levels:
            words, scores = branches.likeliest(self.top)
            peaks.append(scores[:, 0])
            found.append(words[level.origin, level.rank])
            if level is not levels[-1]:
                branches.extend(level.origin[level.inner], found[-1][level.inner])
        ids = _read(torch.cat(found), torch.cat(peaks))
        return Draft.tree(ids, self.tree.parents[: len(ids)])


def _levels(tree: Tree, device: torch.device) -> list[TreeLevel]:
    """The tree level by level, as index tensors on the device."""
    inner = {path[:-1] for path in tree.paths}
    levels: list[TreeLevel] = []
    before: list[tuple[int, ...]] = [()]
    for depth in range(1, tree.depth + 1):
        nodes = [path for path in tree.paths if len(path) == depth]
        grown = [place for place, path in enumerate(nodes) if path in inner]
        rows = ([before.index(path[:-1]) for path in nodes], [path[-1] for path in nodes], grown)
        levels.append(TreeLevel(*(torch.tensor(row, device=device) for row in rows)))
        before = [nodes[place] for place in grown]
    return levels


def _read(numbers: Tensor, scores: Tensor) -> list[int]:
    """Numbers on the host; it waits for them, and for whether there was NaN, once."""
    *found, broken = torch.cat([numbers, scores.isnan().any()[None].long()]).tolist()
    if broken:
        raise NumericalError(
            "eagle: NaN or infinite logits of the draft network; try --dtype float32 or check "
            "its weights"
        )
    return found
