"""A session over one prompt whose outputs are many: the prompt runs once."""

from __future__ import annotations

from torch import Tensor

from ppdbench.engine.session import Session
from ppdbench.engine.taps import Tap


class SharedPrompt(Session):
    """Keeps the rows of a prompt, and what each layer gave for it, for the outputs that follow.

    A row behind the prompt never changes those of the prompt, so that they only have to be
    counted in again.
    """

    _prompt: list[int] | None = None
    _given: dict[int, Tensor]
    _last: Tensor

    def run_prompt(self, *, tap: Tap | None = None) -> Tensor:
        """Run the prompt, or hand out again what it gave: [1, 1, hidden] after its last token."""
        if self._prompt != self.tokens:
            self._given = {}
            self._last = super().run_prompt(tap=self._keep)
            self._prompt = list(self.tokens)
        self.cache.hold(len(self._prompt), 0, self.model.n_layers)
        if tap is not None:
            for layer, hidden in self._given.items():
                tap(layer, hidden)
        return self._last

    def _keep(self, layer: int, hidden: Tensor) -> None:
        self._given[layer] = hidden
