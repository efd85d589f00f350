"""The draft network over one sequence: true rows, and guesses that branch off behind them.

True rows carry the target's own features and stay. Guesses carry the network's states, lie
behind the true rows in its cache, one level of a tree per pass, and are overwritten by the
next true rows: what was accepted runs again on the features that the target has found since.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import Step
from ppdbench.methods.eagle.network import DraftNetwork


class DraftRows:
    """The network's cache for one sequence after another; `held` true rows are in it.

    `capacity` is the longest sequence, `spare` the most guesses at a time.
    """

    def __init__(self, network: DraftNetwork, capacity: int, spare: int) -> None:
        self.network = network
        self.cache, self.steps = network.new_cache(capacity + spare)
        self.held = 0

    def read(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Append true rows of tokens [1, n], features one token earlier; states [1, n, hidden]."""
        step = self.steps.chain(self.held, tokens.shape[1])
        self.held = step.end
        self.cache.begin(step, 0, 1)
        states: Tensor = self.network(tokens, features, step, self.cache)
        return states

    def branches(self, state: Tensor) -> NewestLevel:
        """Guesses that go on from `state` [1, 1, hidden], that of the last true row."""
        n = self.held
        seen = torch.ones(1, n, dtype=torch.bool, device=state.device)
        return NewestLevel(self.network, self.cache, state, seen, self.steps.index[0, n - 1 : n])

    def branches_at(self, features: Tensor, rows: Tensor) -> NewestLevel:
        """A branch in place of each of several true rows [n], from features [1, n, hidden].

        Each sees the true rows before the one that it stands for.
        """
        seen = self.steps.index[:, : self.held] < rows[:, None]
        return NewestLevel(self.network, self.cache, features, seen, rows - 1)


@dataclass
class NewestLevel:
    """The newest level of guesses: what a pass over the next level needs to know of it.

    `states` [1, n, hidden] stand in for the target's features, `seen` [n, key] says which rows
    of the cache each of them has seen, `places` [n] where it stands.
    """

    network: DraftNetwork
    cache: KVCache
    states: Tensor
    seen: Tensor
    places: Tensor

    def extend(self, origin: Tensor, tokens: Tensor) -> Tensor:
        """One pass: tokens [n] that go on from rows `origin` [n] of the newest level."""
        n, start = len(tokens), self.seen.shape[1]
        itself = torch.eye(n, dtype=torch.bool, device=tokens.device)
        self.seen = torch.cat([self.seen[origin], itself], dim=1)
        self.places = self.places[origin] + 1
        step = Step(
            start=start,
            n_query=n,
            key_length=start + n,
            positions=self.places[None],
            contiguous=False,
            visible=self.seen[None],
        )
        self.cache.begin(step, 0, 1)
        self.states = self.network(tokens[None], self.states[:, origin], step, self.cache)
        return self.states

    def logits(self) -> Tensor:
        """Return logits of the token after each row, [n, draft vocabulary]."""
        return self.network.logits(self.states)[0]

    def likeliest(self, top: int) -> tuple[Tensor, Tensor]:
        """The target's ids that most likely follow each row, and their log-probabilities."""
        scores, ids = self.logits().float().log_softmax(-1).topk(top)  # [n, top]
        return self.network.words(ids), scores
