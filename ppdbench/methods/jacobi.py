"""Jacobi decoding: guess the next tokens, let the model correct all of them at once, repeat.

Santilli et al. 2023. Greedy decoding is read as a system of equations, one per position, and
solved by fixed-point iteration: what the model predicts after each guessed token is the next
guess for the place behind it. The window slides with what is committed instead of waiting
until a whole block has settled. No weights and no memory of the text: what is accepted is
what the model corrected in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import check_least, option, strategy

if TYPE_CHECKING:
    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session


@strategy(
    "jacobi",
    chains=True,
    papers=(
        arxiv(
            "2305.10427", "Accelerating Transformer Inference for Translation via Parallel Decoding"
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Jacobi:
    """Guess the next tokens and correct all of them in every pass."""

    window: int = option(8, "tokens guessed and corrected at once")

    def __post_init__(self) -> None:
        check_least("jacobi", self, window=1)

    def prepare(self, setup: Setup) -> JacobiProposer:
        """Return the proposer; there is nothing to load."""
        return JacobiProposer(self)


class JacobiProposer(Proposer):
    """The current guess for the places behind the newest token."""

    def __init__(self, options: Jacobi) -> None:
        self.window = options.window
        self.rows = 1 + options.window
        self._guess: list[int] = []

    def start(self, session: Session, prefill: Prefill) -> None:
        """Begin with the newest tokens again: any guess will do, and these need no draw."""
        self._guess = list(session.tokens[-self.window :])

    def propose(self, session: Session, room: int) -> Draft:
        # Places that no prediction has reached yet.
        missing = self.window - len(self._guess)
        self._guess += (self._guess or session.tokens)[-1:] * missing
        return Draft.chain(self._guess[:room])

    def learn(self, session: Session, verified: Verified) -> None:
        """The predictions behind the committed tokens are the next guess."""
        self._guess = list(verified.predictions[len(verified.outcome.path) + 1 :])
