"""Medusa: heads on the last hidden state guess the tokens further ahead, all at once.

Cai et al. 2024. The state that yields the next token is read by a head for each distance as
well, which costs next to nothing. Their likeliest tokens fill a sparse tree of fixed shape,
and one pass verifies it and yields the state that the next tree is filled from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.errors import ConfigError
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import SIZED, TREE, option, strategy
from ppdbench.trees.guessing import Guessing

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session
    from ppdbench.methods.medusa.network import MedusaAddon, MedusaHeads
    from ppdbench.trees.tree import Tree


@strategy(
    "medusa",
    trained=True,
    guessing=Guessing(),
    papers=(
        arxiv(
            "2401.10774",
            "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Medusa:
    """Heads on the last hidden state guess several tokens ahead."""

    addon: str = option(
        "",
        "what `train medusa` wrote, or a published medusa_lm_head (what came with the model)",
        names="file",
    )
    tree: str = option("", f"{TREE} (the add-on's tree.json, or a general one)", names=SIZED)
    typical: float = option(
        0.0, "keep what is likely enough: epsilon of typical acceptance, not exact (0: off)"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.typical < 1:
            raise ConfigError(
                f"medusa: typical={self.typical}; use 0 (off), or above 0 and below 1"
            )

    def prepare(self, setup: Setup) -> MedusaProposer:
        """Load the heads and the tree that they fill."""
        from ppdbench.methods.medusa.choice import lay_out_heads
        from ppdbench.methods.medusa.network import load_medusa
        from ppdbench.trees.choice import check_top, choose, fingerprint, used_parts

        def found() -> MedusaAddon:
            addon = load_medusa(self.addon, setup.target)
            return replace(addon, heads=lay_out_heads(addon.heads))

        medusa = setup.part(("medusa", self.addon), found)
        tree = choose("medusa", self.tree, medusa.folder, medusa.heads.count, setup.capacity)
        check_top("medusa", tree.top, medusa.heads.n_words)
        loaded = {"addon": medusa.fingerprint, "tree": fingerprint(tree)}
        facts = {**medusa.facts, "nodes": [1 + len(tree)], "rows": [1 + len(tree)]}
        guessing = MedusaProposer(medusa.heads, tree, loaded, self.typical, facts)
        guessing.used = used_parts(self.addon, self.tree, medusa.folder, setup.target.spec.name)
        return guessing


class MedusaProposer(Proposer):
    """Fills the tree from the last hidden state of the newest token that the model has run."""

    _state: Tensor  # [1, hidden]

    def __init__(
        self,
        heads: MedusaHeads,
        tree: Tree,
        loaded: dict[str, str],
        typical: float,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.heads, self.tree, self.loaded, self.facts = heads, tree, loaded, facts or {}
        self.rows = 1 + len(tree)
        self.trees = not tree.is_chain
        self._used = heads.first(tree.depth)
        self.taps = (heads.after,)
        if typical:
            from ppdbench.decoding.typical import Typical

            self.acceptance = Typical(typical)

    def start(self, session: Session, prefill: Prefill) -> None:
        self._state = prefill.taps[self.heads.after][0, -1:]

    def propose(self, session: Session, room: int) -> Draft:
        tokens = self.tree.fill(self._used.likeliest(self._state, self.tree.top))
        return Draft.tree(tokens, self.tree.parents) if self.trees else Draft.chain(tokens)

    def learn(self, session: Session, verified: Verified) -> None:
        self._state = verified.states[self.heads.after][:, verified.last]

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        """Logits [position, distance, vocab] of every head at some places of a text."""
        session.reset(prompt_ids)
        states: dict[int, Tensor] = {}
        session.prefill(tap=states.__setitem__)
        rows = states[self.heads.after][0, list(positions)]
        return self.heads.everywhere(rows).transpose(0, 1)
