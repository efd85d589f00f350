"""Hidden transfer: pseudo states of tokens to come pass the upper layers with those that are there.

Wu et al. 2024. At the layer of step i every row of a pass, the newest token and each node of the
tree that is being verified, puts a pseudo state i places ahead of itself. So one pass verifies
the last guesses and makes the next ones, whichever node turns out to be the last one accepted.

The first tree is filled from the prompt's last token. Its pseudo states run behind the prompt
once that is cached, which leaves the prefill itself as it is for every other method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft, Insertion
from ppdbench.files.publications import HIDDEN_TRANSFER
from ppdbench.methods.base import SIZED, TREE, option, strategy
from ppdbench.trees.guessing import Guessing

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.masks import Step
    from ppdbench.engine.session import Session
    from ppdbench.engine.truth import TokenLine
    from ppdbench.methods.hidden_transfer.network import RunLayers, TransferMatrices
    from ppdbench.trees.tree import Tree


@strategy(
    "hidden-transfer",
    trained=True,
    papers=(HIDDEN_TRANSFER,),
    guessing=Guessing(rows_per_guess=1, pseudo_states=True),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTransfer:
    """States put ahead of a token at middle layers guess the tokens that will stand there."""

    addon: str = option(
        "", "what `train hidden-transfer` wrote (what came with the model)", names="file"
    )
    tree: str = option("", f"{TREE} (the add-on's tree.json, or a general one)", names=SIZED)
    masked: bool = option(False, "hide the pseudo states of earlier steps from later ones")

    def prepare(self, setup: Setup) -> HiddenTransferProposer:
        """Load the matrices and the tree that their guesses fill."""
        from ppdbench.methods.hidden_transfer.network import load_transfer
        from ppdbench.trees.choice import check_top, choose, fingerprint, used_parts

        transfer, folder, hash_ = setup.part(
            ("hidden-transfer", self.addon), lambda: load_transfer(self.addon, setup.target)
        )
        tree = choose("hidden-transfer", self.tree, folder, len(transfer), setup.capacity)
        check_top("hidden-transfer", tree.top, setup.target.staged.vocab_size)
        loaded = {"addon": hash_, "tree": fingerprint(tree)}
        transferring = HiddenTransferProposer(transfer, tree, loaded, masked=self.masked)
        transferring.used = used_parts(self.addon, self.tree, folder, setup.target.spec.name)
        return transferring


class HiddenTransferProposer(Proposer):
    """Fills the tree with the guesses made behind the last token accepted."""

    _states: Tensor  # of that token's pseudo states after the last layer: [1, step, hidden]

    def __init__(
        self, transfer: TransferMatrices, tree: Tree, loaded: Mapping[str, str], *, masked: bool
    ) -> None:
        self.all_steps, self.transfer = transfer, transfer.first(tree.depth)
        self.tree, self.masked, self.loaded = tree, masked, loaded
        self.facts = {"layers": list(transfer.layers), "nodes": [1 + len(tree)]}
        self.taps = tuple(dict.fromkeys(self.transfer.layers))
        self.trees = not tree.is_chain
        self._shape = Draft(
            (0,) * len(tree), tree.parents if self.trees else None, insertions=self._insertions()
        )
        self.rows = max(self._shape.rows, len(self.all_steps))  # the latter for `guesses`

    def _insertions(self) -> tuple[Insertion, ...]:
        """A pseudo state of each step for every row that is a token."""
        lines = self.tree.lines  # the rows that a row sees, itself included
        n = len(lines)
        insertions = []
        for i, layer in enumerate(self.transfer.layers):
            earlier = () if self.masked else range(1, 1 + i)
            sees = ((*line, *(n * j + row for j in earlier)) for row, line in enumerate(lines))
            depths = (len(line) + i for line in lines)
            states = partial(_transfer, self.transfer, i, n)
            insertions.append(Insertion(layer, states, tuple(sees), tuple(depths)))
        return tuple(insertions)

    def start(self, session: Session, prefill: Prefill) -> None:
        n = len(session.tokens) - 1
        self._states = self.behind(session, self.transfer, prefill.taps, n, [n - 1])[:, :, 0]

    def propose(self, session: Session, room: int) -> Draft:
        likeliest = session.logits(self._states)[0].topk(self.tree.top).indices
        return replace(self._shape, tokens=tuple(self.tree.fill(likeliest)))

    def learn(self, session: Session, verified: Verified) -> None:
        if not verified.draft.insertions:
            return
        n = verified.first_inserted
        self._states = verified.rows[:, n + verified.last :: n]

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        """Logits [position, distance, vocab] behind some places of a text."""
        from torch import cat

        states, length = self.read(session, prompt_ids), len(prompt_ids)
        found = [
            self.behind(session, self.all_steps, states, length, some)[0].transpose(0, 1)
            for some in self.portions(session, prompt_ids, positions)
        ]
        return session.model.logits(cat(found))

    @property
    def farthest(self) -> int:
        """The number of places by which the last of the pseudo states is ahead."""
        return len(self.all_steps)

    @property
    def transferred_at(self) -> Sequence[int]:
        """The number of layers that have run where the pseudo state of each step is put in."""
        return self.all_steps.layers

    def lines(
        self, session: Session, text: list[int], places: Sequence[int]
    ) -> Iterator[TokenLine]:
        """The pseudo states behind some places; where they are masked, each by itself."""
        from torch import stack

        from ppdbench.engine.truth import TokenLine

        layers = self.all_steps.layers
        states, last = self.read(session, text), session.model.n_layers
        lines = [(i,) for i in range(len(layers))] if self.masked else [range(len(layers))]
        for some in self.portions(session, text, places):
            seen, n = self.passed(session, states, len(text), some), len(some)
            for j, place in enumerate(some):
                for steps in lines:
                    joined = {
                        layer: stack(
                            [seen[layer][0, i * n + j] for i in steps if layers[i] < layer]
                        )
                        for layer in range(layers[steps[0]] + 1, last + 1)
                    }
                    yield TokenLine(
                        text[: place + 1],
                        [layers[i] for i in steps],
                        [seen[layers[i]][0, i * n + j] for i in steps],
                        joined,
                        ahead=1 + steps[0],
                    )

    def passed(
        self, session: Session, states: Mapping[int, Tensor], length: int, places: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return all pseudo states behind some places, [1, step * place, hidden] by layers run."""
        seen: dict[int, Tensor] = {}

        def run(rows: Tensor, first: int, last: int, step: Step) -> Tensor:
            seen[first] = rows
            return session.run(rows, first, last, step, tap=seen.__setitem__)

        self.behind(session, self.all_steps, states, length, places, run)
        return seen

    def read(self, session: Session, text: list[int]) -> dict[int, Tensor]:
        """Run a text; its states by layers run."""
        states: dict[int, Tensor] = {}
        session.reset(text)
        session.prefill(tap=states.__setitem__)
        return states

    def portions(
        self, session: Session, text: list[int], places: Sequence[int]
    ) -> Iterator[Sequence[int]]:
        """Yield as many of the places at a time as the cache has rows for behind a text."""
        room = (session.cache.capacity - len(text)) // len(self.all_steps)
        for first in range(0, len(places), room):
            yield places[first : first + room]

    def behind(
        self,
        session: Session,
        transfer: TransferMatrices,
        states: Mapping[int, Tensor],
        length: int,
        places: Sequence[int],
        run: RunLayers | None = None,
    ) -> Tensor:
        """Pseudo states [1, step, place, hidden] in the end, behind places of a cached text."""
        import torch

        from ppdbench.methods.hidden_transfer.network import PseudoStatePass, transferred

        steps = tuple(range(1, 1 + len(transfer)))
        at = torch.tensor(places, device=session.model.device)
        where = PseudoStatePass(at, steps, length, session.capacity - 1, masked=self.masked)
        found = transferred(transfer, states, where, session.model.n_layers, run or session.run)
        session.cache.truncate(length)
        return found


def _transfer(transfer: TransferMatrices, step: int, n: int, hidden: Tensor) -> Tensor:
    """Pseudo states of a step for the first `n` rows of a pass."""
    return transfer.state(step, hidden[0, :n])[None]
