"""EAGLE: a small network continues the target's own features and reads tokens from them.

Li et al. 2024 and 2025. What the target computes anyway for each token, its last hidden state
(EAGLE-1 and 2) or those of three layers (EAGLE-3), tells a network of one layer far more than
the tokens alone; `network.py` says how it is made. The tokens it guesses form a tree,
which the target verifies in one pass. After that the accepted tokens run through the network
again, this time on the features that the target has just computed for them, because guesses
on top of guesses go astray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.errors import ConfigError
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import DRAWN, check_least, left_open, option, strategy
from ppdbench.trees.guessing import Guessing
from ppdbench.trees.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.draft import Draft
    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session
    from ppdbench.methods.eagle.branching import DraftGrower
    from ppdbench.methods.eagle.files import LoadedDraft
    from ppdbench.methods.eagle.network import DraftNetwork

# EAGLE-2's own; and where each row more of a pass costs time, as it does on a CPU.
SIZES = {"depth": 5, "top_k": 10, "nodes": 60}
SIZES_ON_CPU = {"depth": 2, "top_k": 3, "nodes": 5}


@strategy(
    "eagle",
    trained=True,
    guessing=Guessing(by_branch=True),
    papers=(
        arxiv("2401.15077", "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"),
        arxiv(
            "2406.16858",
            "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
        ),
        arxiv(
            "2503.01840",
            "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via "
            "Training-Time Test",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle:
    """Draft with a small network that continues the target's features (EAGLE-1, 2 and 3)."""

    addon: str = option(
        "",
        "folder that `train eagle` wrote, or published files (what came with the model)",
        names="file",
    )
    tree: str = option(
        "dynamic",
        "dynamic: grown by probability (EAGLE-2); chain; or a tree file (EAGLE-1)",
        names="tree",
    )
    depth: int = option(0, "tokens guessed ahead at most; a tree file has its own (5, on a CPU 2)")
    top_k: int = option(
        0, "nodes gone on from at each depth, and guesses after each (10, on a CPU 3)"
    )
    nodes: int = option(0, "nodes verified at most, if dynamic (60, on a CPU 5)")
    reads: str = option(
        "",
        "layers that a published EAGLE-3 reads, such as 2+16+29 (what its files say, or 2, "
        "half and all but 3)",
    )
    drawn: bool = option(True, DRAWN)

    def __post_init__(self) -> None:
        check_least("eagle", self, depth=0, top_k=0, nodes=0)
        parts = self.reads.split("+")
        if self.reads and not (len(parts) == 3 and all(part.isdecimal() for part in parts)):
            raise ConfigError(f"eagle: reads={self.reads!r}; use three layers, such as 2+16+29")

    def prepare(self, setup: Setup) -> EagleProposer:
        """Load the network, make room for its rows, lay out the tree."""
        from ppdbench.methods.eagle.branching import DynamicGrower
        from ppdbench.methods.eagle.files import load_network

        reads = tuple(map(int, self.reads.split("+"))) if self.reads else ()
        draft = setup.part(
            ("eagle", self.addon, reads), lambda: load_network(self.addon, setup.target, reads)
        )
        sizes = self._sizes(setup.target.staged.device.type)
        grower = self._grower(draft.network, setup, **sizes)
        drafter = EagleProposer(draft, grower, setup.capacity)
        drafter.draws = self.drawn
        drafter.used = {"addon": self.addon or setup.target.spec.name}
        if isinstance(grower, DynamicGrower):
            drafter.used |= {name: str(value) for name, value in sizes.items()}
            drafter.chosen = left_open(self, **sizes)
        return drafter

    def _sizes(self, device: str) -> dict[str, int]:
        """The sizes of a dynamic tree: where nothing was asked for, those that suit the device."""
        usual = SIZES_ON_CPU if device == "cpu" else SIZES
        return {name: getattr(self, name) or value for name, value in usual.items()}

    def _grower(
        self, network: DraftNetwork, setup: Setup, *, depth: int, top_k: int, nodes: int
    ) -> DraftGrower:
        from ppdbench.methods.eagle import branching

        top = min(top_k, network.n_words)
        if self.tree == "chain" or (self.tree == "dynamic" and top == 1):
            return branching.ChainGrower(depth)
        if self.tree == "dynamic":
            return branching.DynamicGrower(depth, top, nodes)
        tree = Tree.load(self.tree, max_size=setup.capacity)
        if tree.top == 1:
            return branching.ChainGrower(tree.depth)
        if tree.top > network.n_words:
            raise ConfigError(
                f"eagle: {self.tree} takes {tree.top} guesses after a token; the draft "
                f"vocabulary has {network.n_words}"
            )
        return branching.StaticGrower(tree, setup.target.staged.device)


class EagleProposer(Proposer):
    """The network's rows over one sequence: row i is of token i + 1 and the feature at i."""

    draws = True

    def __init__(self, draft: LoadedDraft, grower: DraftGrower, capacity: int) -> None:
        from ppdbench.methods.eagle.branching import ChainGrower
        from ppdbench.methods.eagle.rows import DraftRows

        self.network, self.grower = draft.network, grower
        self.rows = 1 + grower.nodes
        self.trees = not isinstance(grower, ChainGrower)
        self.taps = draft.network.reads
        self.loaded = {"addon": draft.fingerprint, **grower.loaded}
        self._rows = DraftRows(draft.network, capacity, grower.spare, draft.flat)
        self._fresh: list[dict[int, Tensor]] = []  # states that no row has features of yet

    def start(self, session: Session, prefill: Prefill) -> None:
        self._chooser = prefill.drafting(drawn=self.draws)
        self._rows.held = 0
        self._fresh = [prefill.taps]
        self._read_fresh(session)

    def propose(self, session: Session, room: int) -> Draft:
        if self._fresh:
            self._read_fresh(session)
        return self.grower.grow(self._rows.branches(self._state), room, self._chooser)

    def learn(self, session: Session, verified: Verified) -> None:
        import torch

        kept = [0, *(1 + node for node in verified.outcome.path)]
        rows = torch.tensor(kept, device=verified.hidden.device)
        self._fresh.append(
            {layer: given.index_select(1, rows) for layer, given in verified.taps.items()}
        )

    def _read_fresh(self, session: Session) -> None:
        """Run the tokens since the last time on the features that the target gave for them."""
        import torch

        features = torch.cat([self.network.features(states) for states in self._fresh], dim=1)
        tokens = session.ids(session.tokens[self._rows.held + 1 :])
        self._state = self._rows.read(tokens, features)[:, -1:]
        self._fresh.clear()

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        """Logits [position, distance, vocab] along the likeliest guesses after each position.

        Distance 1 is the token after the model's own next one. Tokens outside the draft
        vocabulary have minus infinity.
        """
        import torch

        from ppdbench.methods.eagle.rows import DraftRows

        network, depth = self.network, self.grower.depth
        taps: dict[int, Tensor] = {}
        session.reset(prompt_ids)
        step = session.steps.prefill(len(prompt_ids))
        hidden = session.forward(session.ids(prompt_ids), step, tap=network.tap(taps))
        places = torch.tensor(positions, device=hidden.device)
        tokens = session.logits(hidden[:, places])[0].argmax(-1)
        features = network.features(taps)
        rows = DraftRows(network, len(prompt_ids), depth * len(positions))
        if len(prompt_ids) > 1:
            rows.read(session.ids(prompt_ids[1:]), features[:, :-1])
        branches = rows.branches_at(features[:, places], places)
        origin, found = torch.arange(len(positions), device=places.device), []
        for _ in range(depth):
            branches.extend(origin, tokens)
            logits = branches.logits()
            found.append(network.spread(logits, float("-inf")))
            tokens = network.words(logits.argmax(-1))
        return torch.stack(found, dim=1)
