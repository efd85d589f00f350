"""Prompt tokens: trained rows behind every node of a tree guess what follows if it is kept.

Hardware-aware parallel prompt decoding (Chen et al. 2024). One pass verifies the tree and makes
the next guesses: a chain of prompt tokens is put behind the newest token and behind each node,
and those of the last node that is accepted, i of them, fill the next tree, which reaches i
tokens ahead. How many prompt tokens each node gets is part of the tree, and there is a tree for
every i. The first pass of an output has nothing to verify yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.files.publications import PROMPT_TOKENS
from ppdbench.methods.base import SIZED, TREE, option, strategy
from ppdbench.trees.guessing import Guessing

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session
    from ppdbench.engine.staged import StagedModel
    from ppdbench.engine.truth import TokenLine
    from ppdbench.methods.prompt_tokens.chains import ChainPattern
    from ppdbench.methods.prompt_tokens.network import Prompts
    from ppdbench.trees.dynamic import DynamicTree


@strategy(
    "prompt-tokens",
    trained=True,
    papers=(PROMPT_TOKENS,),
    # Before there are guesses, prompt tokens have to run once.
    guessing=Guessing(rows_per_guess=1, dynamic_trees=True, unguided_steps=1),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Trained rows behind every node of a tree guess the tokens that follow."""

    addon: str = option(
        "",
        "what `train prompt-tokens` wrote, or a PEFT adapter (what came with the model)",
        names="file",
    )
    tree: str = option(
        "", f"{TREE}, dynamic or static (the add-on's tree.json, or a general one)", names=SIZED
    )

    def prepare(self, setup: Setup) -> PromptTokensProposer:
        """Load the prompt tokens and the tree that they fill."""
        from ppdbench.methods.prompt_tokens.network import load_prompts
        from ppdbench.trees.choice import check_top, choose_dynamic, fingerprint, used_parts

        prompts = setup.part(
            ("prompt-tokens", self.addon), lambda: load_prompts(self.addon, setup.target)
        )
        chain = prompts.chain
        tree = choose_dynamic(
            "prompt-tokens", self.tree, prompts.folder, chain.prompts, setup.capacity, chain.epts
        )
        check_top("prompt-tokens", tree.top, setup.target.staged.vocab_size)
        loaded = {"addon": prompts.fingerprint, "tree": fingerprint(tree)}
        prompted = PromptTokensProposer(prompts, tree, setup.target.staged, loaded)
        prompted.used = used_parts(self.addon, self.tree, prompts.folder, setup.target.spec.name)
        return prompted


class PromptTokensProposer(Proposer):
    """Guesses with the chain of the last node that was accepted."""

    trees = True
    _pattern: ChainPattern
    _exits: list[
        Tensor
    ]  # of each exit what the chain of the last accepted node gave: [row, hidden]

    def __init__(
        self, prompts: Prompts, tree: DynamicTree, model: StagedModel, loaded: dict[str, str]
    ) -> None:
        from ppdbench.methods.prompt_tokens.chains import within_any_room

        self.prompts, self.model, self.loaded = prompts, model, loaded
        self.facts = {
            **prompts.facts,
            "nodes": [len(state.prompts) for state in tree.states],
            "rows": [state.rows(prompts.chain.epts) for state in tree.states],
        }
        self.patterns = [within_any_room(state, prompts) for state in tree.states]
        self._first_patterns: dict[int, ChainPattern] = {}
        self.rows = max(self._opening(1).rows, *(each[-1].rows for each in self.patterns))
        self.top = tree.top
        self.taps = tuple(range(model.n_layers, model.n_layers - prompts.exits, -1))

    def start(self, session: Session, prefill: Prefill) -> None:
        self._reach = 0

    def propose(self, session: Session, room: int) -> Draft:
        if not self._reach:
            return self.behind(session.tokens[-1:])
        by_depth = self.patterns[self._reach - 1]
        self._pattern = by_depth[min(room, len(by_depth) - 1)]
        tree, insertions = self._pattern.tree, (self._pattern.insertion,)
        return Draft.tree(tree.fill(self._guessed()), tree.parents, insertions=insertions)

    def _guessed(self) -> Tensor:
        """Ids [distance, rank] that the chain of the last accepted node guesses."""
        return self.prompts.logits(self.model.adapter, self._exits).topk(self.top).indices

    def behind(self, known: Sequence[int]) -> Draft:
        """Return prompt tokens behind the last of some known tokens, the first the newest."""
        self._pattern = self._opening(len(known))
        return Draft.chain(known[1:], insertions=(self._pattern.insertion,))

    def _opening(self, known: int) -> ChainPattern:
        from ppdbench.methods.prompt_tokens.chains import first_pattern

        if known not in self._first_patterns:
            # A tree may have been built for fewer prompt tokens than there are.
            self._first_patterns[known] = first_pattern(known, len(self.patterns), self.prompts)
        return self._first_patterns[known]

    def learn(self, session: Session, verified: Verified) -> None:
        if not verified.draft.insertions:  # the output has all its tokens
            return
        first, self._reach = self._pattern.chains[verified.last]
        first += verified.first_inserted
        rows = slice(first, first + self.prompts.chain.rows(self._reach))
        self._exits = [verified.states[layer][0, rows] for layer in self.taps]

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        """Logits [position, distance, vocab] of a whole chain behind some places of a text."""
        from torch import cat

        from ppdbench.methods.prompt_tokens.network import guesses_behind

        session.reset(prompt_ids)
        session.prefill()
        parts = self._portions(positions)
        return cat([guesses_behind(self.prompts, session, part) for part in parts])

    def _portions(self, positions: Sequence[int]) -> list[Sequence[int]]:
        """List as many of the positions at a time as the cache has rows for behind a text."""
        chain = self.prompts.chain
        spare = self.rows - chain.prompts * chain.prefix
        n = max(1, spare // chain.rows(chain.prompts))
        return [positions[first : first + n] for first in range(0, len(positions), n)]

    @property
    def farthest(self) -> int:
        """The number of places by which the last prompt token is ahead."""
        return self.prompts.chain.prompts

    def lines(
        self, session: Session, text: list[int], places: Sequence[int]
    ) -> Iterator[TokenLine]:
        """The chains behind some places, of each number of an ensemble by itself.

        Without the prefix and in the plainest mask: others no stock model can be given.
        """
        from ppdbench.engine.truth import TokenLine
        from ppdbench.methods.prompt_tokens.network import plain_prompts, states_behind

        prompts, chain = plain_prompts(self.prompts), self.prompts.chain
        rows = chain.rows(chain.prompts)
        session.reset(text)
        session.prefill()
        for some in self._portions(places):
            states = states_behind(prompts, session, some)
            for j, place in enumerate(some):
                for number in range(chain.epts):
                    ours = slice(j * rows + number, (j + 1) * rows, chain.epts)
                    joined = {layer: found[0, ours] for layer, found in states.items()}
                    given = list(joined.pop(0))
                    yield TokenLine(text[: place + 1], [0] * len(given), given, joined)
