"""The closeness of pseudo states to those that the true tokens have, layer by layer.

Hidden Transfer (Wu et al. 2024), Figure 4. The model decodes a prompt greedily. Behind every
place of that text the pseudo states of all steps are run, and compared after each layer with
the state that the token really had at their position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ppdbench.decoding.decoder import Decoder, Transferring
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError
from ppdbench.runs.workload import Item
from ppdbench.trees.guessing import guessers

DIGITS = 5  # kept of a cosine


class Cosines:
    """The cosine of each pseudo state and the true one: by step, then by layers run."""

    def __init__(self, label: str, decoder: Decoder) -> None:
        if not isinstance(decoder, Transferring):
            able = " or ".join(guessers("pseudo_states"))
            raise ConfigError(f"--method {label}: it has no pseudo states; use {able}")
        self.decoder = decoder

    @torch.inference_mode()
    def __call__(self, session: Session, item: Item, output: Sequence[int]) -> dict[str, Any]:
        text, steps = [*item.ids, *output], len(self.decoder.transferred_at)
        # From the last token of the prompt to the last one with a true token for every step.
        places = range(len(item.ids) - 1, len(text) - steps)
        cosines: dict[str, dict[str, list[float]]] = {}
        for (step, layer), values in self._measured(session, text, places):
            found = [round(value, DIGITS) for value in values.tolist()]
            cosines.setdefault(str(step), {}).setdefault(str(layer), []).extend(found)
        return {"similarity": cosines}

    def _measured(
        self, session: Session, text: list[int], places: range
    ) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Cosines of some of the places by (step, layers run), and so on for the others."""
        true = self.decoder.read(session, text)
        for some in self.decoder.portions(session, text, places):
            seen, n = self.decoder.passed(session, true, len(text), some), len(some)
            for i, transferred_at in enumerate(self.decoder.transferred_at):
                positions = slice(some[0] + i + 1, some[-1] + i + 2)
                for layer in range(transferred_at, session.model.n_layers + 1):
                    pseudo = seen[layer][0, i * n : (i + 1) * n]
                    yield (
                        (i + 1, layer),
                        cosine_similarity(
                            pseudo.float(), true[layer][0, positions].float(), dim=-1
                        ),
                    )
