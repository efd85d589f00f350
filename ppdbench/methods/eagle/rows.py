"""The draft network over one sequence: true rows, and guesses that branch off behind them.

True rows carry the target's own features and stay. Guesses carry the network's states, lie
behind the true rows in its cache, one level of a tree per pass, and are overwritten by the
next true rows: what was accepted runs again on the features that the target has found since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import Step
from ppdbench.machine.threads import threads
from ppdbench.methods.eagle.flat import FlatDraft, FlatRows
from ppdbench.methods.eagle.network import DraftNetwork


class DraftRows:
    """The network's cache for one sequence after another; `held` true rows are in it.

    `capacity` is the longest sequence, `spare` the most guesses at a time. Where there is a
    `flat` way to run the network, passes take it.
    """

    def __init__(
        self, network: DraftNetwork, capacity: int, spare: int, flat: FlatDraft | None = None
    ) -> None:
        self.network = network
        self.cache, self.steps = network.new_cache(capacity + spare)
        self.flat = None if flat is None else flat.over(self.cache)
        self.held = 0

    def read(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Append true rows of tokens [1, n], features one token earlier; states [1, n, hidden]."""
        step = self.steps.chain(self.held, tokens.shape[1])
        self.held = step.end
        self.cache.begin(step, 0, 1)
        if self.flat is not None:
            return self.flat.chain(tokens, features, step.start)
        with threads.returned():
            states: Tensor = self.network(tokens, features, step, self.cache)
        return states

    def branches(self, state: Tensor) -> NewestLevel:
        """Guesses that go on from `state` [1, 1, hidden], that of the last true row."""
        if self.flat is not None:
            return FlatLevel(self.flat, state, self.held)
        n = self.held
        seen = torch.ones(1, n, dtype=torch.bool, device=state.device)
        return MaskedLevel(self.network, self.cache, state, seen, self.steps.index[0, n - 1 : n])

    def branches_at(self, features: Tensor, rows: Tensor) -> NewestLevel:
        """A branch in place of each of several true rows [n], from features [1, n, hidden].

        Each sees the true rows before the one that it stands for.
        """
        seen = self.steps.index[:, : self.held] < rows[:, None]
        return MaskedLevel(self.network, self.cache, features, seen, rows - 1)


class NewestLevel(ABC):
    """The newest level of guesses; `states` [1, n, hidden] stand in for the target's features."""

    network: DraftNetwork
    states: Tensor

    @abstractmethod
    def extend(self, origin: Tensor, tokens: Tensor) -> Tensor:
        """One pass: tokens [n] that go on from rows `origin` [n] of the newest level."""

    @abstractmethod
    def logits(self) -> Tensor:
        """Return logits of the token after each row, [n, draft vocabulary]."""

    def likeliest(self, top: int) -> tuple[Tensor, Tensor]:
        """The target's ids that most likely follow each row, and their log-probabilities."""
        scores, ids = self.logits().float().log_softmax(-1).topk(top)  # [n, top]
        return self.network.words(ids), scores


class MaskedLevel(NewestLevel):
    """A level that the modules run, on any device.

    `seen` [n, key] says which rows of the cache each guess has seen, `places` [n] where it stands.
    """

    def __init__(
        self, network: DraftNetwork, cache: KVCache, states: Tensor, seen: Tensor, places: Tensor
    ) -> None:
        self.network, self.states = network, states
        self._cache, self._seen, self._places = cache, seen, places

    def extend(self, origin: Tensor, tokens: Tensor) -> Tensor:
        n, start = len(tokens), self._seen.shape[1]
        itself = torch.eye(n, dtype=torch.bool, device=tokens.device)
        self._seen = torch.cat([self._seen[origin], itself], dim=1)
        self._places = self._places[origin] + 1
        step = Step(
            start=start,
            n_query=n,
            key_length=start + n,
            placed=self._places[None],
            contiguous=False,
            visible=self._seen[None],
        )
        self._cache.begin(step, 0, 1)
        with threads.returned():
            self.states = self.network(tokens[None], self.states[:, origin], step, self._cache)
        return self.states

    def logits(self) -> Tensor:
        with threads.returned():
            return self.network.logits(self.states)[0]


class FlatLevel(NewestLevel):
    """A level behind `held` true rows that a program runs.

    `lines` are the rows of guesses that lead to each of its own, itself the last.
    """

    def __init__(self, flat: FlatRows, state: Tensor, held: int) -> None:
        self.network, self.states = flat.draft.network, state
        self._flat, self._held, self._end = flat, held, held
        self._lines: list[list[int]] = [[]]

    def extend(self, origin: Tensor, tokens: Tensor) -> Tensor:
        came_from = origin.tolist()
        self._lines = [[*self._lines[i], self._end + at] for at, i in enumerate(came_from)]
        self._end += len(came_from)
        states = self.states[:, origin]
        self.states = self._flat.guesses(tokens[None], states, self._held, self._lines)
        return self.states

    def logits(self) -> Tensor:
        return self._flat.draft.logits(self.states)[0]
