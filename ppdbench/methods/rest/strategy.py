"""REST: look up what followed the same words in a text of one's own.

He et al. 2023. The longest suffix of the sequence that occurs in a datastore is searched;
what follows its occurrences there becomes a tree of the most frequent continuations. No
weights; `ppdbench datastore` makes the datastore from any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.errors import ConfigError
from ppdbench.files.publications import arxiv
from ppdbench.files.resources import SHIPPED, came_with, trained_part
from ppdbench.methods.base import DraftSizes, check_least, option, strategy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ppdbench.engine.session import Session
    from ppdbench.methods.rest.datastore import Datastore

    Positions = npt.NDArray[np.int64]
    Waiting = tuple[int, int, int, int, int, Positions]

STORE = "datastore"  # its folder among what came with a model
SIZES = DraftSizes(usual={"max_nodes": 32}, on_cpu={"max_nodes": 4})


@strategy("rest", papers=(arxiv("2311.08252", "REST: Retrieval-Based Speculative Decoding"),))
@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Continue as a datastore continues after the longest suffix that it knows."""

    datastore: str = option(
        "",
        "folder that `ppdbench datastore` wrote; reference, smollm2: what came with these",
        names="file",
    )
    longest_suffix: int = option(16, "tokens of the longest suffix looked up")
    max_nodes: int = option(0, "nodes of the proposed tree at most (0: 32, on a CPU 4)")
    max_depth: int = option(10, "tokens of a continuation at most")
    max_matches: int = option(4096, "occurrences looked at, evenly spread, where there are more")

    def __post_init__(self) -> None:
        check_least("rest", self, longest_suffix=1, max_nodes=0, max_depth=1, max_matches=1)
        if not self.datastore:
            raise ConfigError(
                "rest: no datastore; build one with `ppdbench datastore --text FILE --out DIR` "
                "and give --set datastore=DIR"
            )

    @classmethod
    def parts_of(cls, model: str) -> dict[str, str]:
        """Return the datastore that came with `model`."""
        return {"datastore": model} if came_with(model, STORE) else {}

    def prepare(self, setup: Setup) -> RestProposer:
        """Open the datastore, which must be this model's."""
        from ppdbench.methods.rest.datastore import load_datastore

        own = self.datastore in SHIPPED
        folder = trained_part(self.datastore, STORE) if own else Path(self.datastore).expanduser()
        store = setup.part(("rest", folder), lambda: load_datastore(folder))
        store.check(setup.target.tokenizer, setup.target.staged.vocab_size, folder)
        if self.longest_suffix > store.header.depth:
            raise ConfigError(
                f"rest: longest_suffix={self.longest_suffix}, but the datastore is sorted by "
                f"{store.header.depth} tokens; use 1..{store.header.depth}"
            )
        filled = SIZES.fill(self, setup.target.staged.device.type)
        return SIZES.note(RestProposer(filled, store), self, filled)


class RestProposer(Proposer):
    """Lookups in one datastore; nothing is remembered from step to step."""

    trees = True

    def __init__(self, options: Rest, store: Datastore) -> None:
        assert options.max_nodes, "a size is chosen before a proposer is made"
        self.options, self.store = options, store
        self.rows = 1 + options.max_nodes
        self.loaded = {"datastore": store.header.sample}

    def propose(self, session: Session, room: int) -> Draft:
        known, places = self.store.longest(session.tokens, self.options.longest_suffix)
        if not places:
            return Draft.empty()
        found = self.store.positions(places, self.options.max_matches)
        return self._most_frequent(found + known, min(room, self.options.max_depth))

    def _most_frequent(self, positions: Positions, deepest: int) -> Draft:
        """The tree of the beginnings that most continuations share, short ones first.

        A continuation is as frequent as its rarest beginning at most, so taking the most
        frequent one again and again never leaves a node without its parent.
        """
        nodes: list[tuple[int, int]] = []  # token, parent
        waiting: list[Waiting] = []
        self._wait(waiting, -1, 0, positions)
        while waiting and len(nodes) < self.options.max_nodes:
            _, depth, parent, _, token, reached = heappop(waiting)
            nodes.append((token, parent))
            # With the end-of-sequence token a document ends, and so does what continues here.
            if depth < deepest and token != self.store.header.eos:
                self._wait(waiting, len(nodes) - 1, depth, reached + 1)
        return Draft.tree([token for token, _ in nodes], [parent for _, parent in nodes])

    def _wait(self, waiting: list[Waiting], parent: int, depth: int, at: Positions) -> None:
        """Line up what follows a node, the most frequent and shallow ahead of others."""
        for rank, (token, where) in enumerate(self.store.following(at, self.options.max_nodes)):
            # Parent and rank are unlike any other entry's: arrays are never compared.
            heappush(waiting, (-len(where), depth + 1, parent, rank, token, where))
