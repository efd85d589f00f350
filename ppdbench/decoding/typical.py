"""Typical acceptance: keep drafted tokens that the model finds likely enough. Not exact.

Cai et al. 2024 (Medusa), after truncation sampling (Hewitt et al. 2022): a token x is kept if
p(x) > min(epsilon, sqrt(epsilon) exp(-H)), where p is the model's distribution there and H its
entropy. The unsurer the model, the less is asked for. What is most likely is always kept, so
that no fewer tokens are accepted than by greedy verification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft
from ppdbench.decoding.verify import Outcome


@dataclass(frozen=True, slots=True)
class Typical:
    """The rule with its epsilon, above 0 and below 1."""

    epsilon: float

    def __call__(self, draft: Draft, logits: Tensor, predictions: Sequence[int]) -> Outcome:
        """The longest path of tokens that are all kept; of equals the most likely one.

        `logits` [1 + n, vocab] belong to the newest token, then to each node, `predictions`
        are the most likely tokens there.
        """
        parents = draft.lineage
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        scores: dict[int, float] = {-1: 0.0}
        for node, (kept, likely) in enumerate(self._judged(draft, parents, logits)):
            parent = parents[node]
            if kept and parent in paths and node < draft.proposed:
                paths[node] = (*paths[parent], node)
                scores[node] = scores[parent] + math.log(likely)
        end = max(paths, key=lambda node: (len(paths[node]), scores[node]))
        return Outcome(paths[end], predictions[end + 1])

    def _judged(
        self, draft: Draft, parents: tuple[int, ...], logits: Tensor
    ) -> list[tuple[float, float]]:
        """Return for each node if it is kept (1 or 0), and its probability after its parent."""
        if not draft.tokens:
            return []
        above = torch.tensor(parents, device=logits.device) + 1
        tokens = torch.tensor(draft.tokens, device=logits.device)
        logs = torch.log_softmax(logits.float(), -1)
        p = logs.exp()
        entropy = torch.special.entr(p).sum(-1)
        asked = (math.sqrt(self.epsilon) * torch.exp(-entropy)).clamp(max=self.epsilon)
        likely = p[above, tokens]
        judged = torch.stack([(likely > asked[above]).float(), likely], dim=1)
        return [(kept, value) for kept, value in judged.tolist()]
