"""A strategy that knows the answer, for tests of the loop."""

from __future__ import annotations

import functools

from ppdbench.decoding.decoder import Proposer
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.loop import Prefill
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.testing import CAPACITY as CAPACITY
from ppdbench.testing import CLOCK as CLOCK
from ppdbench.testing import Case as Case
from ppdbench.testing import assert_exact as assert_exact
from ppdbench.testing import cases as cases
from ppdbench.testing import decode_case as decode_case
from ppdbench.testing import free as free
from ppdbench.testing import reference as reference
from tests.helpers import VOCAB


@functools.lru_cache(maxsize=256)
def known(model: StagedModel, prompt: tuple[int, ...]) -> list[int]:
    """A prompt and all that greedy decoding gives after it."""
    return [*prompt, *free(model, list(prompt), CAPACITY - len(prompt))]


class Oracle(Proposer):
    """Knows the output; drafts the next `depth` tokens, wrong from `wrong_from` on.

    As a tree it hides them between wrong siblings.
    """

    def __init__(
        self, model: StagedModel, depth: int, wrong_from: int | None = None, tree: bool = False
    ) -> None:
        self.model, self.depth, self.tree = model, depth, tree
        self.wrong_from = depth if wrong_from is None else wrong_from
        self.rows = 1 + 2 * depth
        self.known: list[int] = []

    def start(self, session: Session, prefill: Prefill) -> None:
        self.known = known(self.model, tuple(session.tokens[:-1]))

    def propose(self, session: Session, room: int) -> Draft:
        n = len(session.tokens)
        truth = self.known[n : n + self.depth]
        chain = [t if i < self.wrong_from else (t + 1) % VOCAB for i, t in enumerate(truth)]
        if not self.tree:
            return Draft.chain(chain)
        nodes: list[int] = []
        parents: list[int] = []
        at = -1
        for token in chain:
            nodes += [(token + 7) % VOCAB, token]
            parents += [at, at]
            at = len(nodes) - 1
        return Draft.tree(nodes, parents)
