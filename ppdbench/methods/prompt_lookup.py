"""Prompt lookup: bet that the text is about to repeat itself.

Saxena 2023. Proposes whatever followed the latest earlier copy of the current suffix. No
weights, so it is the floor that other methods must beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.files.publications import Publication
from ppdbench.methods.base import DraftSizes, check_least, option, strategy
from ppdbench.methods.copies import Copies

if TYPE_CHECKING:
    from ppdbench.decoding.loop import Prefill
    from ppdbench.engine.session import Session

SIZES = DraftSizes(usual={"max_draft": 8}, on_cpu={"max_draft": 5})


@strategy(
    "prompt-lookup",
    chains=True,
    papers=(
        Publication(
            "Prompt Lookup Decoding", "https://github.com/apoorvumang/prompt-lookup-decoding"
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup:
    """Continue as after the latest earlier copy of the current suffix."""

    longest_suffix: int = option(3, "tokens of the longest suffix looked up")
    max_draft: int = option(0, "tokens proposed at most (0: 8, on a CPU 5)")

    def __post_init__(self) -> None:
        check_least("prompt-lookup", self, longest_suffix=1, max_draft=0)

    def prepare(self, setup: Setup) -> PromptLookupProposer:
        """Return the proposer; there is nothing to load."""
        filled = SIZES.fill(self, setup.target.staged.device.type)
        return SIZES.note(PromptLookupProposer(filled), self, filled)


def drafted_on(device: str) -> int:
    """Return the tokens proposed at most where nobody asked, by the kind of device."""
    return SIZES.on(device)["max_draft"]


class PromptLookupProposer(Proposer):
    """Lookups of how the text ends, in what was there before."""

    def __init__(self, options: PromptLookup) -> None:
        assert options.max_draft, "a length is chosen before a proposer is made"
        self.options = options
        self.rows = 1 + options.max_draft
        self._copies = Copies(options.longest_suffix)

    def start(self, session: Session, prefill: Prefill) -> None:
        self._copies.forget()

    def propose(self, session: Session, room: int) -> Draft:
        copied = self._copies.of(session.tokens)
        if copied is None:
            return Draft.empty()
        return Draft.chain(copied.follows(session.tokens, min(room, self.options.max_draft)))
