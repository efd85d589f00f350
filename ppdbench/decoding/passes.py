"""One pass of the model over a draft, and over the rows that join it layer by layer.

Below its layer an inserted row does not exist: a pass is run in stages, each with more rows
than the one before. Rows that were there go on as if nothing had come, and the cache holds
the new ones behind them, where acceptance drops them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft, Insertion
from ppdbench.engine.masks import Step, TrainedRows
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.taps import Tap
from ppdbench.errors import DraftError


def run_and_read(
    session: Session, draft: Draft, tap: Tap | None, start: int
) -> tuple[Tensor, Reading]:
    """Run a draft behind `start` cached rows: states of all rows, and the readout of tokens."""
    if draft.computed is None and not draft.insertions:
        step = _step(session, draft, start, 0)
        return session.run_and_read(_tokens(session, draft), step, tap=tap)
    rows = run_pass(session, draft, tap, start)
    return rows, session.read(draft.of_tokens(rows))


def run_pass(
    session: Session, draft: Draft, tap: Tap | None = None, start: int | None = None
) -> Tensor:
    """Hidden states [1, rows, hidden] after the last layer; all rows are cached afterwards.

    The newest token comes first, then the draft's nodes, then what was inserted. `start` is the
    first row that is not cached, where that is known.
    """
    start = session.cached if start is None else start
    # What joins as embeddings is there from the first layer on.
    at_first = sum(insertion.layer == 0 for insertion in draft.insertions)
    step = _step(session, draft, start, at_first)
    if draft.computed is None:
        hidden = session.embed(session.ids(_tokens(session, draft)), step)
        done = 0
    else:
        hidden, done = draft.computed.hidden, draft.computed.layers
    given: list[TrainedRows] = []
    for number, insertion in enumerate(draft.insertions, start=1):
        if insertion.layer > done:
            hidden = session.run(hidden, done, insertion.layer, step, tap=tap)
            done = insertion.layer
        new = new_rows(insertion, hidden)
        if number > at_first:
            step = _step(session, draft, start, number)
        if insertion.given is not None:
            last = hidden.shape[1] + len(insertion)
            given.append(replace(insertion.given, first=last - insertion.given.n_rows))
        step.given = tuple(given)
        if done == 0:
            new = session.model.adapter.place(new, step.positions, hidden.shape[1])
        hidden = torch.cat([hidden, new], dim=1)
    return session.run(hidden, done, session.model.n_layers, step, tap=tap)


def _tokens(session: Session, draft: Draft) -> list[int]:
    """The newest token and those of the draft."""
    return [session.tokens[-1], *draft.tokens]


def _step(session: Session, draft: Draft, start: int, inserted: int) -> Step:
    """The pass over the tokens and what the first so many insertions add to them."""
    if draft.parents is None and not inserted:
        return session.chain(1 + len(draft), start)
    joined = [(each.sees, each.depths) for each in draft.insertions[:inserted]]
    return session.tree(_rooted(draft.lineage), start, joined)


@lru_cache(maxsize=256)
def _rooted(parents: tuple[int, ...]) -> tuple[int, ...]:
    """The parents of a draft's nodes with the newest token as the first row."""
    return (-1, *(1 + parent for parent in parents))


def new_rows(insertion: Insertion, hidden: Tensor) -> Tensor:
    """Return the rows that an insertion adds to those so far, [1, new, hidden]."""
    new = insertion.states(hidden)
    wanted = (1, len(insertion), hidden.shape[-1])
    if tuple(new.shape) != wanted or new.dtype != hidden.dtype:
        raise DraftError(
            f"the insertion after {insertion.layer} layers gave {new.dtype} of shape "
            f"{tuple(new.shape)}, not {hidden.dtype} of {wanted}"
        )
    return new
