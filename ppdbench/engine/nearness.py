"""Distances from the truth: of logits, and of hidden states."""

from __future__ import annotations

from torch import Tensor

# Logits far below the best choose no token; only the best so many are compared.
CONTENDERS = 64


def distance(logits: Tensor, truth: Tensor) -> Tensor:
    """Measure how far logits [position, vocab] lie from the truth, by position.

    The root mean square over the likeliest tokens, less what all of these share: adding the same
    to all logits changes nothing.
    """
    best = truth.topk(min(CONTENDERS, truth.shape[-1]), dim=-1).indices
    off = logits.to(truth).gather(-1, best) - truth.gather(-1, best)
    return (off - off.mean(-1, keepdim=True)).square().mean(-1).sqrt().double()


def gap(rows: Tensor, true: Tensor) -> Tensor:
    """Measure how far hidden states [row, hidden] lie from the true ones, over their length."""
    off: Tensor = (rows.to(true) - true).square().sum(-1) / true.square().sum(-1)
    return off.sqrt().double()
