"""Hybrid drafts: copies where the text repeats itself, a trained part's guesses elsewhere.

What a text has said before is found for nothing and goes on for many tokens; what it says for
the first time only a part that was trained on such text can guess. As SuffixDecoding's hybrid does
(Oliaro et al. 2024), a copy of a longer ending is drafted alone and spares the part its work;
otherwise the part guesses, and copies of a shorter ending join its tree as further branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import METHODS, SIZED, check_least, check_words, option, strategy
from ppdbench.methods.copies import Copies

if TYPE_CHECKING:
    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session

# Methods that draft from states of any pass, whoever made the draft that it verified.
PARTS = ("medusa", "eagle")


@strategy(
    "hybrid",
    trained=True,
    part=PARTS[0],
    papers=(
        arxiv(
            "2411.04975",
            "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """Continue as an earlier copy does, and where there is none as a trained part guesses."""

    of: str = option(PARTS[0], f"method whose trained part guesses: {' or '.join(PARTS)}")
    addon: str = option("", "its trained part (what came with the model)", names="file")
    tree: str = option("", "its tree, as it takes it (what it takes itself)", names=SIZED)
    longest_suffix: int = option(3, "tokens of the longest suffix looked up")
    alone: int = option(2, "tokens of a suffix whose copy is drafted without guesses beside it")
    max_draft: int = option(8, "tokens of such a copy proposed at most")
    branches: int = option(2, "copies of a shorter suffix that join the guesses at most")
    branch_length: int = option(3, "tokens of each of these")

    def __post_init__(self) -> None:
        check_words("hybrid", self, of=PARTS)
        check_least(
            "hybrid", self, longest_suffix=1, alone=1, max_draft=1, branches=0, branch_length=1
        )

    def prepare(self, setup: Setup) -> HybridProposer:
        """Load the part, which drafts the likeliest tokens: none of a copy is drawn either."""
        method = METHODS.get(self.of)
        told = {"addon": self.addon, "tree": self.tree}
        options = {name: value for name, value in told.items() if value}
        if any(option.name == "drawn" for option in method.options()):
            options["drawn"] = "false"
        part = method.build(options).prepare(setup)
        assert isinstance(part, Proposer)
        return HybridProposer(self, part)


class HybridProposer(Proposer):
    """Copies of one sequence, and what guesses where there are none."""

    trees = True

    def __init__(self, options: Hybrid, part: Proposer) -> None:
        self.options, self.part = options, part
        beside = options.branches * options.branch_length
        self.rows = max(1 + options.max_draft, part.rows + beside)
        self.taps, self.loaded, self.used = part.taps, part.loaded, part.used
        self._copies = Copies(options.longest_suffix)

    def start(self, session: Session, prefill: Prefill) -> None:
        self._copies.forget()
        self.part.start(session, prefill)

    def propose(self, session: Session, room: int) -> Draft:
        tokens, options = session.tokens, self.options
        copied = self._copies.of(tokens)
        if copied is not None and copied.length >= options.alone:
            return Draft.chain(copied.follows(tokens, min(room, options.max_draft)))
        guesses = self.part.propose(session, room)
        if copied is None:
            return guesses
        most = min(room, options.branch_length)
        copies = copied.branches(tokens, most, options.branches)
        return Draft.merged([guesses, *map(Draft.chain, copies)])

    def learn(self, session: Session, verified: Verified) -> None:
        self.part.learn(session, verified)
