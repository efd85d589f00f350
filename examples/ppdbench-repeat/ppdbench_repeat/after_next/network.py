"""The matrix: what the last hidden state knows of the token after the next one.

The model reads its next token out of the last hidden state h, after the final norm; h + W h goes
through the same head for the token after that. An add-on holds `matrix` [hidden, hidden].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import linear

from ppdbench.engine.addons import open_addon
from ppdbench.engine.loading import Loaded

METHOD = "after-next"


@dataclass(frozen=True, slots=True)
class AfterNextHead:
    """A matrix and where it came from."""

    adapter: Any
    matrix: Tensor
    fingerprint: str
    facts: dict[str, Any]

    def logits(self, hidden: Tensor) -> Tensor:
        """Of last hidden states [n, hidden]: [n, vocab]."""
        return read_out(self.adapter, hidden, self.matrix)


def read_out(adapter: Any, hidden: Tensor, matrix: Tensor) -> Tensor:
    """Logits of the token after the next one."""
    normed = adapter.norm(hidden)
    logits: Tensor = adapter.cap(adapter.head(normed + linear(normed, matrix.to(normed.dtype))))
    return logits


def load_head(asked: str, loaded: Loaded) -> AfterNextHead:
    """The matrix in a folder that `ppdbench train after-next` wrote, if it is this model's."""
    addon = open_addon(asked, METHOD, loaded)
    width = loaded.staged.hidden_size
    matrix = addon.take("matrix", (width, width))
    addon.close()
    return AfterNextHead(loaded.staged.adapter, matrix, addon.fingerprint, addon.facts())
