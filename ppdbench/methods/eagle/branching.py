"""Branching: the shape that drafts take while a draft network writes them, a pass per level.

Li et al. 2024. A dynamic tree (EAGLE-2) takes the probability that the network gives a whole
path as the chance that the path is accepted: at each level it goes on from the likeliest
nodes alone, and in the end verifies the likeliest of all it has found. A static tree (EAGLE-1)
has one shape for all contexts. Everything happens on the device until the host reads the
whole draft at once; only draws are made on the host.

Where tokens are drawn, siblings are drawn without replacement. How many a node has and which
nodes go on is then settled before they are drawn: to keep or drop one for what it turned out to
be would change what it was drawn from.
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
        if not chooser.target.greedy:
            return self._drawn(branches, room, chooser)
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

    def _drawn(self, branches: NewestLevel, room: int, chooser: Chooser) -> Draft:
        """A tree of about the same shape whose tokens are drawn."""
        levels, left = min(room, self.depth), self.nodes
        grown = DrawnNodes()
        scores, places = torch.zeros(1, dtype=torch.float64), torch.tensor([-1])
        for level in range(levels):
            width = min(-(-left // (levels - level)), len(scores) * self.top)
            logits = branches.logits()
            count = self._siblings(scores, chooser.target.for_drafts.distribution(logits), width)
            first = len(grown)
            origin, tokens, found = grown.draw(branches, logits, count, places, chooser)
            left -= width
            if level + 1 < levels and left > 0:
                totals = scores[origin] + found
                best = totals.topk(min(self.top, len(totals))).indices.sort().values
                on = best.to(tokens.device)
                branches.extend(origin[best].to(tokens.device), tokens[on])
                scores, places = totals[best], first + best
            elif left <= 0:
                break
        return grown.draft()

    def _siblings(self, scores: Tensor, likely: Tensor, width: int) -> Tensor:
        """Count, for each row [n], those of the `width` likeliest next nodes that hang on it."""
        after = likely.topk(self.top).values.double().log().cpu()
        best = (scores[:, None] + after).flatten().topk(width).indices // self.top
        return torch.bincount(best, minlength=len(scores))

    def _likeliest(self, scores: Tensor) -> Tensor:
        """The nodes with the best scores, in the order in which they were found.

        No path is likelier than its beginning; where both are equally likely, the stable sort
        puts the beginning first. So what is kept is a tree.
        """
        return scores.sort(descending=True, stable=True).indices[: self.nodes].sort().values


class DrawnNodes:
    """The nodes of a tree that are drawn level by level, and what each family is drawn from."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self._tokens: list[Tensor] = []
        self._peaks: list[Tensor] = []
        self._sources: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.parents)

    def draw(
        self,
        branches: NewestLevel,
        logits: Tensor,
        count: Tensor,
        places: Tensor,
        chooser: Chooser,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add `count` [n] siblings for each row of `logits`, the nodes `places` [n].

        Each new node's row, its token of the target, and its log-probability.
        """
        drawn, source = chooser.draw_siblings(logits, int(count.max()))
        origin = torch.arange(len(count)).repeat_interleave(count)
        turn = torch.cat([torch.arange(n) for n in count.tolist()])
        ids = drawn[origin.to(drawn.device), turn.to(drawn.device)]
        found = source[origin.to(source.device), ids].double().log().cpu()
        tokens = branches.network.words(ids)
        self.parents += places[origin].tolist()
        self._tokens.append(tokens)
        self._peaks.append(logits.amax(-1))
        self._sources.append(branches.network.spread(source[(count > 0).to(source.device)], 0.0))
        return origin, tokens, found

    def draft(self) -> Draft:
        """The tree, once all levels are drawn."""
        ids = _read(torch.cat(self._tokens), torch.cat(self._peaks))
        return Draft.tree(ids, self.parents, probabilities=torch.cat(self._sources))


@dataclass(frozen=True)
class TreeLevel:
    """The nodes of a static tree at one depth.

    `origin` says which row of the pass before each was read from, `rank` which of the guesses
    there it is, `inner` which of them the next pass goes on from, `count` how many there are of
    each row.
    """

    origin: Tensor
    rank: Tensor
    inner: Tensor
    count: Tensor


class StaticGrower:
    """The same shape at every step."""

    def __init__(self, tree: Tree, device: torch.device) -> None:
        self.tree = Tree(tuple(sorted(tree.paths, key=lambda path: (len(path), path))))
        self.depth, self.nodes, self.top = tree.depth, len(tree), tree.top
        self.loaded: Mapping[str, str] = {"tree": fingerprint(tree)}
        self.levels = _levels(self.tree, device)
        self.spare = sum(len(level.inner) for level in self.levels)

    def grow(self, branches: NewestLevel, room: int, chooser: Chooser) -> Draft:
        found: list[Tensor] = []
        peaks: list[Tensor] = []
        levels = self.levels[:room]
        if not chooser.target.greedy:
            return _drawn(branches, levels, chooser)
        for level in levels:
            words, scores = branches.likeliest(self.top)
            peaks.append(scores[:, 0])
            found.append(words[level.origin, level.rank])
            if level is not levels[-1]:
                branches.extend(level.origin[level.inner], found[-1][level.inner])
        ids = _read(torch.cat(found), torch.cat(peaks))
        return Draft.tree(ids, self.tree.parents[: len(ids)])


def _drawn(branches: NewestLevel, levels: list[TreeLevel], chooser: Chooser) -> Draft:
    """A tree of the same shape whose siblings are drawn."""
    grown, places = DrawnNodes(), torch.tensor([-1])
    for level in levels:
        first = len(grown)
        logits = branches.logits()
        origin, tokens, _ = grown.draw(branches, logits, level.count.cpu(), places, chooser)
        inner = level.inner.cpu()
        if level is not levels[-1]:
            branches.extend(origin[inner].to(tokens.device), tokens[inner.to(tokens.device)])
        places = first + inner
    return grown.draft()


def _levels(tree: Tree, device: torch.device) -> list[TreeLevel]:
    """The tree level by level, as index tensors on the device."""
    inner = {path[:-1] for path in tree.paths}
    levels: list[TreeLevel] = []
    before: list[tuple[int, ...]] = [()]
    for depth in range(1, tree.depth + 1):
        nodes = [path for path in tree.paths if len(path) == depth]
        grown = [place for place, path in enumerate(nodes) if path in inner]
        origin = [before.index(path[:-1]) for path in nodes]
        count = [origin.count(row) for row in range(len(before))]
        rows = (origin, [path[-1] for path in nodes], grown, count)
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
