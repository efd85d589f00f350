"""Verification: keep drafted tokens and add the model's own; the only exactness logic.

Greedy: a token is kept if it is the one the model itself would have chosen there. Sampled
(Leviathan et al. 2023, Chen et al. 2023): a token is kept with probability min(1, p/q) and
replaced by a draw from what p has more than q, so that outputs follow p whatever q is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft, offspring
from ppdbench.decoding.sampling import Target
from ppdbench.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of verifying a draft: the kept nodes from the newest token on, the next token."""

    path: tuple[int, ...]
    token: int


# A rule in place of `accept_greedy`: of a draft, its logits [1 + n, vocab] and the most likely
# tokens there. A method that brings one is not exact.
Acceptance = Callable[[Draft, Tensor, Sequence[int]], Outcome]


def keep_all(draft: Draft, logits: Tensor, predictions: Sequence[int]) -> Outcome:
    """Keep all of a chain, whose tokens are known and not guessed."""
    return Outcome(tuple(range(len(draft.tokens))), predictions[-1])


def accept_greedy(draft: Draft, predictions: Sequence[int]) -> Outcome:
    """Follow the model's own choices through the draft.

    `predictions` holds its most likely token after the newest token, then after each node.
    """
    if draft.parents is None and not draft.riders:
        kept = 0
        while kept < len(draft.tokens) and draft.tokens[kept] == predictions[kept]:
            kept += 1
        return Outcome(tuple(range(kept)), predictions[kept])
    children = offspring(draft.parents or tuple(range(-1, len(draft.tokens) - 1)))
    tokens, proposed = draft.tokens, draft.proposed
    path: list[int] = []
    row = 0
    while True:
        for node in children[row]:
            if tokens[node] == predictions[row] and node < proposed:
                path.append(node)
                row = 1 + node
                break
        else:
            return Outcome(tuple(path), predictions[row])


def accept_sampled(
    draft: Draft, logits: Tensor, target: Target, generator: torch.Generator
) -> Outcome:
    """Keep and replace so that outputs follow the target's distribution.

    `logits` [1 + n, vocab] belong to the newest token, then to each of a chain's tokens. A
    token that was chosen and not drawn counts as drawn with certainty.
    """
    if draft.parents is not None or draft.riders:
        raise ConfigError(
            "this method proposes trees, and sampled verification is for chains; use --target "
            "greedy"
        )
    wanted = target.distribution(logits).double().cpu()
    drawn = None if draft.probabilities is None else draft.probabilities.double().cpu()
    for i, token in enumerate(draft.tokens):
        p = wanted[i]
        q = _certainly(token, p) if drawn is None else drawn[i]
        if float(torch.rand((), generator=generator, dtype=torch.float64)) * q[token] < p[token]:
            continue
        surplus = (p - q).clamp(min=0)
        # Rounding alone may leave none where p and q are the same.
        rest = surplus if float(surplus.sum()) > 0 else p
        return Outcome(tuple(range(i)), int(torch.multinomial(rest, 1, generator=generator)))
    last = torch.multinomial(wanted[len(draft.tokens)], 1, generator=generator)
    return Outcome(tuple(range(len(draft.tokens))), int(last))


def _certainly(token: int, like: Tensor) -> Tensor:
    """The distribution of a token that was chosen, not drawn."""
    certain = torch.zeros_like(like)
    certain[token] = 1
    return certain
