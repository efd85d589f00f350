"""Repeat: bet that what followed the newest token last time follows it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Setup
from ppdbench.decoding.draft import Draft
from ppdbench.methods import Proposer, option, strategy

if TYPE_CHECKING:
    from ppdbench.engine.session import Session


@strategy("repeat")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What followed the newest token when it was last seen."""

    max_draft: int = option(3, "tokens proposed at most")

    def prepare(self, setup: Setup) -> RepeatProposer:
        """Nothing to load."""
        return RepeatProposer(self.max_draft)


class RepeatProposer(Proposer):
    """Looks the newest token up in the text so far."""

    def __init__(self, max_draft: int) -> None:
        self.max_draft = max_draft
        self.rows = 1 + max_draft

    def propose(self, session: Session, room: int) -> Draft:
        tokens = session.tokens
        for place in range(len(tokens) - 2, -1, -1):
            if tokens[place] == tokens[-1]:
                return Draft.chain(tokens[place + 1 : place + 1 + self.max_draft])
        return Draft.empty()
