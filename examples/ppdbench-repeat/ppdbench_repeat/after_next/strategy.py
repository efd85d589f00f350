"""After-next: the state that yields the next token is read for the one after it as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Setup
from ppdbench.decoding.draft import Draft
from ppdbench.methods import Proposer, option, strategy

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session
    from ppdbench_repeat.after_next.network import AfterNextHead


@strategy("after-next", trained=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class AfterNext:
    """One trained matrix guesses the token after the next one."""

    addon: str = option("", "what `train after-next` wrote", names="file")

    def prepare(self, setup: Setup) -> AfterNextProposer:
        """Load the matrix."""
        from ppdbench_repeat.after_next.network import load_head

        head = load_head(self.addon, setup.target)
        return AfterNextProposer(head, setup.target.staged.n_layers)


class AfterNextProposer(Proposer):
    """Reads the last hidden state of the newest token that the model has run."""

    _state: Tensor  # [1, hidden]
    rows = 2

    def __init__(self, head: AfterNextHead, n_layers: int) -> None:
        self.head, self.loaded, self.facts = head, {"addon": head.fingerprint}, head.facts
        self.last = n_layers
        self.taps = (n_layers,)

    def start(self, session: Session, prefill: Prefill) -> None:
        self._state = prefill.taps[self.last][0, -1:]

    def propose(self, session: Session, room: int) -> Draft:
        return Draft.chain([int(self.head.logits(self._state).argmax())])

    def learn(self, session: Session, verified: Verified) -> None:
        self._state = verified.states[self.last][:, verified.last]

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        """Logits [position, 1, vocab], for `ppdbench probe --what drafts`."""
        session.reset(prompt_ids)
        states: dict[int, Tensor] = {}
        session.prefill(tap=states.__setitem__)
        return self.head.logits(states[self.last][0, list(positions)])[:, None]
