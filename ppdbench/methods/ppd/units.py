"""The two halves of a pipelined model: layers up to the exit, and the layers after it.

While the upper half finishes one token, the lower half runs the first layers for the
likeliest next tokens, all at once, as siblings of a tree. They attend to the same rows and
not to each other, so that the one that turns out right can be taken as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ppdbench.decoding.loop import ReadOut, tell_watcher
from ppdbench.decoding.sampling import Chooser
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.methods.ppd.log import UnitLog, UnitReport

# More parts overlap better, but small ones use the processor badly.
LEAST_PIECE, MOST_PIECES = 32, 4

EarlyHead = Callable[[Session, Tensor], Tensor]


def own_head(session: Session, hidden: Tensor) -> Tensor:
    """The model's own norm and head as the early one."""
    return session.logits(hidden)


def likeliest(logits: Tensor, k: int) -> list[int]:
    """The `k` largest of `logits` [vocab], largest first, ties by lowest token id."""
    # The first of the largest, k times: for a handful that is less work than a partial sort.
    heights = logits.float().cpu().numpy().copy()
    ids: list[int] = []
    for _ in range(k):
        ids.append(int(heights.argmax()))
        heights[ids[-1]] = -math.inf
    return ids


@dataclass(slots=True)
class Candidates:
    """Candidates for the next token and what the first layers gave for each: [1, k, hidden].

    Nothing is here of those that run elsewhere. `early` [1, k, vocab] is what the early head
    says after each of them, where it was asked before the token was known.
    """

    ids: list[int]
    states: Tensor | None
    early: Tensor | None = None

    def row(self, token: int) -> int | None:
        """Return the row of the candidate that is this token; None if there is none."""
        return self.ids.index(token) if token in self.ids else None

    def state(self, row: int) -> Tensor:
        """Return the first layers' output for one candidate: [1, 1, hidden]."""
        assert self.states is not None
        return self.states[:, row : row + 1]


class LowerLayers:
    """Layers [0, exit_after): the prompt, the newest token, and candidates for the next one.

    Candidates run as many layers as the other half has, the first `ahead`; the rest of this
    half is run for the right one alone.
    """

    def __init__(
        self,
        session: Session,
        exit_after: int,
        k: int,
        log: UnitLog,
        head: EarlyHead = own_head,
    ) -> None:
        self.session, self.exit_after, self.k, self.head = session, exit_after, k, head
        self.ahead = session.model.n_layers - exit_after
        self.log = log
        self.rows = 0  # how many tokens the cache holds, candidates not counted

    @property
    def widest(self) -> int:
        """The most rows that its passes have after the prompt."""
        return self.k

    @property
    def branches(self) -> bool:
        """True if any pass holds siblings."""
        return self.k > 1

    @property
    def offers(self) -> bool:
        """True if candidates run through all of this half, so that nothing is left to do."""
        return self.ahead == self.exit_after

    def prompt(self, ids: list[int], *, whole: bool) -> Tensor:
        """The next tokens of the prompt; what this half gives for them: [1, n, hidden]."""
        began = time.perf_counter()
        session, n = self.session, len(ids)
        step = session.steps.prefill(n) if whole else session.chain(n, start=self.rows)
        self.rows += n
        hidden = session.run(session.embed(session.ids(ids), step), 0, self.exit_after, step)
        self.log.note("prompt", 0, began)
        return hidden

    def candidates(self, newest: Tensor, number: int) -> list[int]:
        """Candidates for output `number` after the state of the token before: [1, 1, hidden]."""
        began = time.perf_counter()
        words = likeliest(self.head(self.session, newest)[0, -1], self.k)
        self.log.note("early head", number, began)
        return words

    def look_ahead(self, words: list[int], number: int) -> Candidates:
        """The first layers for every candidate for output `number`."""
        began = time.perf_counter()
        ahead = self._first_layers(words)
        self.log.note("ahead", number, began)
        return ahead

    def read_ahead(self, ahead: Candidates, number: int) -> None:
        """The early head for output `number`, after each candidate for the one before."""
        assert ahead.states is not None
        began = time.perf_counter()
        ahead.early = self.head(self.session, ahead.states)
        self.log.note("early head", number, began)

    def next_candidates(
        self, ahead: Candidates, token: int, newest: Tensor, number: int
    ) -> list[int]:
        """Candidates for output `number` after `token`, whose state is `newest`."""
        row = ahead.row(token)
        if row is None or ahead.early is None:
            return self.candidates(newest, number)
        return likeliest(ahead.early[0, row], self.k)

    def _first_layers(self, words: list[int]) -> Candidates:
        session, n = self.session, len(words)
        # One candidate is no tree: without a mask it takes the way that every token takes.
        step = session.chain(1, self.rows) if n == 1 else session.tree([-1] * n, self.rows)
        states = session.run(session.embed(session.ids(words), step), 0, self.ahead, step)
        return Candidates(words, states)

    def follow(self, ahead: Candidates, token: int, number: int) -> Tensor:
        """The state of the chosen token: [1, 1, hidden], from its candidate if it was one."""
        began = time.perf_counter()
        row = ahead.row(token)
        newest = self._fresh(token) if row is None else self._adopted(ahead, row)
        self.log.note("missed" if row is None else "adopt", number, began)
        return newest

    def _fresh(self, token: int) -> Tensor:
        """A token that no candidate was, from the first layer on."""
        session = self.session
        step = session.chain(1, start=self.rows)
        self.rows += 1
        return session.run(session.embed(session.ids([token]), step), 0, self.exit_after, step)

    def _adopted(self, ahead: Candidates, row: int) -> Tensor:
        """One candidate kept, the others dropped, this half finished for it."""
        self.session.cache.keep(self.rows, [row], range(self.ahead))
        return self._middle(ahead.state(row))

    def _middle(self, hidden: Tensor) -> Tensor:
        """The layers between those run ahead and the exit, for the row that comes next."""
        step = self.session.chain(1, start=self.rows)
        self.rows += 1
        if self.offers:
            return hidden
        return self.session.run(hidden, self.ahead, self.exit_after, step)

    def end(self) -> UnitReport:
        """End the output, and report on it."""
        return UnitReport(events=self.log.events)


class UpperLayers:
    """Layers from the exit on, the head, and the choice of the token."""

    def __init__(self, session: Session, exit_after: int, chooser: Chooser) -> None:
        self.session, self.exit_after, self.chooser = session, exit_after, chooser
        self.rows = self.chosen = 0

    def prompt(self, hidden: Tensor, *, whole: bool) -> Tensor:
        """The next rows of the prompt: [1, n, hidden] after the last layer."""
        n = hidden.shape[1]
        if whole:
            return self._run(hidden, self.session.steps.prefill(n))
        return self._run(hidden, self.session.chain(n, start=self.rows))

    def token(self, hidden: Tensor) -> tuple[int, float]:
        """The token after one row [1, 1, hidden], and the largest logit."""
        return self.choose(self._run(hidden, self.session.chain(1, start=self.rows)))

    def choose(self, hidden: Tensor) -> tuple[int, float]:
        """The token after the last row of `hidden`, and the largest logit: NaN if any is."""
        reading = self.session.read(hidden[:, -1:])
        tell_watcher(self.session, self.chosen, ReadOut(reading, self.session.model.n_layers))
        self.chosen += 1
        return self.chooser.choose_last(reading), float(reading.heights[0])

    def _run(self, hidden: Tensor, step: Step) -> Tensor:
        self.rows = step.end
        return self.session.run(hidden, self.exit_after, self.session.model.n_layers, step)


def prompt_pieces(prompt: list[int]) -> list[list[int]]:
    """The prompt in parts, so that one half can go on while the other has the part before."""
    size = max(LEAST_PIECE, -(-len(prompt) // MOST_PIECES))
    return [prompt[i : i + size] for i in range(0, len(prompt), size)]


class UnitSessions:
    """A unit's buffers for the layers it runs: one set for each shape of passes asked for."""

    def __init__(self, model: StagedModel, capacity: int, layers: range, spare: int = 0) -> None:
        self._model, self._capacity, self._layers, self._spare = model, capacity, layers, spare
        self._made: dict[int | None, Session] = {}

    def of(self, rows: int | None) -> Session:
        """Buffers for passes of so many rows, or of any number."""
        if rows not in self._made:
            self._made[rows] = Session(
                self._model,
                self._capacity,
                spare=max(self._spare, rows or 0),
                fixed_rows=rows,
                layers=self._layers,
            )
        return self._made[rows]
