"""Differential attention: what half of the heads gather, less a share of what the others do.

Values are twice as wide as keys: those of two heads of the cache, one of its first half and one of
its second, side by side. So heads attend twice, by the same scores, and gather of each half in
turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ppdbench.engine.flat.norms import write_norm

if TYPE_CHECKING:
    from ppdbench.engine.flat.heads import HeadSizes
    from ppdbench.engine.flat.ops import Buffer, Program

NORM = "groupnorm"


def halves(heads: HeadSizes) -> tuple[range, range]:
    """The heads of values that all heads of keys take in turn, first and then."""
    half = heads.keys // 2
    return range(half), range(half, heads.keys)


@torch.no_grad()
def share_of(block: Any) -> float:
    """The share that is taken away, rounded as the block rounds it."""
    pairs = (block.lambda_q1 * block.lambda_k1, block.lambda_q2 * block.lambda_k2)
    one, two = (pair.sum(dtype=torch.float32).exp().to(pair.dtype) for pair in pairs)
    return float(one - two + block.lambda_init)


def write_difference(
    program: Program,
    room: Callable[[str, int], Buffer],
    block: nn.Module,
    heads: HeadSizes,
    gathered: Buffer,
    target: Buffer,
) -> None:
    """Write what comes of what all heads have gathered, first of one half and then of the other."""
    order = torch.arange(gathered.width).view(2, heads.queries, heads.value).transpose(0, 1)
    apart = room("apart", gathered.width)
    program.pick(gathered, apart, order.flatten())
    more, less = apart.part(0, target.width), apart.part(target.width, target.width)
    program.scale(less, less, -share_of(block))
    program.add(more, less, target)
    write_norm(program, block.get_submodule(NORM), target, target, 2 * heads.value)
    own: Any = block
    program.scale(target, target, 1 - own.lambda_init)
