"""Verification: keep drafted tokens and add the model's own; the only exactness logic.

Greedy: a token is kept if it is the one the model itself would have chosen there. Sampled
(Leviathan et al. 2023, Chen et al. 2023): a token is kept with probability min(1, p/q) and
replaced by a draw from what p has more than q, so that outputs follow p whatever q is. In a tree
(Miao et al. 2024; Li et al. 2024) its siblings are tried before that draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft, offspring
from ppdbench.decoding.sampling import Target, drawn, uniform


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
    children = offspring(draft.lineage)
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
    draft: Draft,
    logits: Tensor,
    target: Target,
    generator: torch.Generator,
    text: Sequence[int] = (),
) -> Outcome:
    """Try siblings one after another, so that outputs follow the target's distribution.

    `logits` [1 + n, vocab] belong to the newest token, then to each node; `text` are all tokens
    up to the newest, for targets that look at them.

    Why it is exact. Let p be what the next token has yet to follow, and q what the next sibling x
    was drawn from, given everything drawn before. Keeping x if u q(x) < p(x) commits a token t
    with probability min(p(t), q(t)); a rejection has the probability that p still lacks, the sum
    of r = max(p - q, 0), and hands r, scaled to 1, on as the p of the siblings that are left, or
    of a plain draw. Together: min(p, q) + r = p. This asks nothing of q, and by induction holds
    for any number of siblings, each with its own q. Those of one family are drawn without
    replacement: q loses what was tried and is scaled again. A token that was chosen, such as one
    of the k likeliest, is a draw from a q that is 1 there: it is kept with probability p(x), and
    r is p without x. So is a token that its q cannot give. Below a kept token the same begins
    anew: its children were drawn before anybody knew that it would be kept.
    """
    children, families = offspring(draft.lineage), draft.families
    path: list[int] = []
    row = 0
    while True:
        so_far = [*text, *(draft.tokens[node] for node in path)]
        # Only the tokens that p can give matter: of 49,152 mostly a few dozen.
        tokens, p = target.possible(logits[row], so_far)
        q = shared = torch.zeros(0)
        if draft.probabilities is not None and children[row]:
            # Copies, of which what was tried is struck out; the second of what p can give as well.
            q = draft.probabilities[families.index(row - 1)].to("cpu", torch.float64, copy=True)
            shared = q[tokens]
        for node in children[row]:
            if node >= draft.proposed:
                continue
            token = draft.tokens[node]
            here = _place(token, tokens)
            source, likely, whole = shared, float(q[token : token + 1].sum()), float(q.sum())
            if likely == 0:
                source, likely, whole = (tokens == token).double(), 1.0, 1.0  # it was chosen
            if uniform(generator) * likely < float(p[here].sum()) * whole:
                path.append(node)
                row = 1 + node
                break
            # Rounding alone may leave nothing where both are the same.
            p = _scaled(p.sub(source, alpha=1 / whole).clamp_(min=0), or_else=p)
            q[token : token + 1] = shared[here] = 0
        else:
            return Outcome(tuple(path), int(tokens[drawn(p, generator)]))


def _place(token: int, tokens: Tensor) -> slice:
    """The place of a token among others that are in order; an empty one where it is not there."""
    place = int(torch.searchsorted(tokens, token))
    return slice(place, place + int(place < len(tokens) and int(tokens[place]) == token))


def _scaled(weights: Tensor, or_else: Tensor) -> Tensor:
    """Weights made to add up to 1, or what else is given where there are none."""
    total = float(weights.sum())
    return weights.div_(total) if total > 0 else or_else
