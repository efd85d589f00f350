"""Words that are looked up in the head: of models that multiply by the very words they read.

A head's weight is laid out for products, and an embedding reads plain rows: one would be a copy.
A row of a blob is found all the same, at the price of some hundred fetches for a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ppdbench.engine.flat.ops import Program
from ppdbench.engine.flat.weights import FlatLinear
from ppdbench.engine.packing import SharedWords


class FlatWords(SharedWords):
    """The words of a model, looked up in the weight of its head."""

    held: FlatLinear

    def __init__(self, flat: FlatLinear) -> None:
        super().__init__(flat.dtype)
        self.held = flat
        self._program = Program(flat.dtype, flat.in_features)

    def forward(self, tokens: Tensor) -> Tensor:
        """[...] to [..., width]."""
        asked, width = tokens.reshape(-1).contiguous().long(), self.held.in_features
        found = torch.empty(len(asked), width, dtype=self.held.dtype)
        if len(asked):
            self._program.run(0, 0, asked, found, self._program.hidden, words=self.held)
        return found.view((*tokens.shape, width))

    def rows(self) -> Tensor:
        return self.held.unpacked()


def as_embedding(head: nn.Module) -> nn.Embedding:
    """The plain embedding that shares the rows of a plain head."""
    rows = head.get_parameter("weight").data
    return nn.Embedding.from_pretrained(rows)  # type: ignore[no-any-return, no-untyped-call]
