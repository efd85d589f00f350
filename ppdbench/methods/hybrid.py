"""Hybrid drafts: copies where the text repeats itself, a trained part's guesses elsewhere.

What a text has said before is found for nothing and goes on for many tokens; what it says for
the first time only a part that was trained on such text can guess. As SuffixDecoding's hybrid does
(Oliaro et al. 2024), a copy of a longer ending is drafted alone and spares the part its work;
otherwise the part guesses, and a copy of a shorter ending joins its tree as one more branch.
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
    beside: int = option(4, "tokens of the copy of a shorter suffix, which joins the guesses")

    def __post_init__(self) -> None:
        check_words("hybrid", self, of=PARTS)
        check_least("hybrid", self, longest_suffix=1, alone=1, max_draft=1, beside=0)

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
        self.rows = max(1 + options.max_draft, part.rows + options.beside)
        self.taps, self.loaded, self.used = part.taps, part.loaded, part.used
        self._copies = Copies(options.longest_suffix)

    def start(self, session: Session, prefill: Prefill) -> None:
        self._copies.forget()
        self.part.start(session, prefill)

    def propose(self, session: Session, room: int) -> Draft:
        tokens = session.tokens
        copy = self._copies.latest(tokens)
        if copy is None:
            return self.part.propose(session, room)
        is_alone = copy.length >= self.options.alone
        most = self.options.max_draft if is_alone else self.options.beside
        copied = Draft.chain(tokens[copy.behind : copy.behind + min(room, most)])
        return copied if is_alone else Draft.merged([self.part.propose(session, room), copied])

    def learn(self, session: Session, verified: Verified) -> None:
        self.part.learn(session, verified)
