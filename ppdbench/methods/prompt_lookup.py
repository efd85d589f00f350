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
    """Lookups of the place where each n-gram was last seen, kept up to date token by token."""

    def __init__(self, options: PromptLookup) -> None:
        assert options.max_draft, "a length is chosen before a proposer is made"
        self.options = options
        self.rows = 1 + options.max_draft
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def start(self, session: Session, prefill: Prefill) -> None:
        self._after.clear()
        self._seen = 0

    def propose(self, session: Session, room: int) -> Draft:
        tokens = session.tokens
        self._read(tokens)
        for n in range(min(self.options.longest_suffix, len(tokens) - 1), 0, -1):
            follow = self._after.get(tuple(tokens[-n:]))
            if follow is not None:
                return Draft.chain(tokens[follow : follow + min(room, self.options.max_draft)])
        return Draft.empty()

    def _read(self, tokens: list[int]) -> None:
        """Note where n-grams end; not those that end with the text, which nothing follows."""
        for end in range(self._seen + 1, len(tokens)):
            for n in range(1, min(self.options.longest_suffix, end) + 1):
                self._after[tuple(tokens[end - n : end])] = end
        self._seen = len(tokens) - 1
