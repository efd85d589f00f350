"""Weights laid out as files store them, in 4 or 8 bits, for kernels that unpack them on the way.

Rows are multiplied by the very numbers that plain weights would hold, in the same order: a product
is the same bit by bit. What differs is how many bytes memory has to send.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ppdbench.engine.flat.native import STORED_FORMS, Columns, Product
from ppdbench.engine.flat.weights import BLOCK, FlatLinear, in_blocks
from ppdbench.engine.levels import GROUP, Levels
from ppdbench.machine.pages import large_pages

WORD = 32  # bits
AT_ONCE = 1 << 22  # weights that are looked at


class StoredLinear(FlatLinear):
    """y = x W^T + b over levels of W, their scales and their shifts (see stored.h)."""

    def __init__(
        self,
        blob: Tensor,
        bias: Tensor | None,
        outputs: int,
        inputs: int,
        *,
        bits: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(blob, bias, outputs, inputs)
        self.bits, self._dtype = bits, dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def product(self, target: Columns | None = None, first: int = 0) -> Product:
        made = super().product(target, first)
        made.form = STORED_FORMS[self.bits]
        return made

    def biased(self, bias: Tensor) -> FlatLinear:
        return self._over(self.blob, bias.detach().float(), self.out_features)

    def outputs(self, first: int, count: int) -> FlatLinear | None:
        if self.bias is not None or not in_blocks(first, count):
            return None
        return self._over(self.blob[first // BLOCK : (first + count) // BLOCK], None, count)

    def unpacked(self) -> Tensor:
        return self._levels().numbers(self.dtype)

    def _is_made_of(self, weight: Tensor) -> bool:
        """True for these numbers; noughts may differ in their sign, which no sum tells apart.

        Some blocks at a time: numbers in the making take many times what they are stored in.
        """
        at_once = max(1, AT_ONCE // (BLOCK * self.in_features))
        for first in range(0, len(self.blob), at_once):
            begin, part = first * BLOCK, self.blob[first : first + at_once]
            outputs = min(len(part) * BLOCK, self.out_features - begin)
            numbers = self._over(part, None, outputs).unpacked()
            if not torch.equal(numbers, weight[begin : begin + outputs]):
                return False
        return True

    def _over(self, blob: Tensor, bias: Tensor | None, outputs: int) -> StoredLinear:
        return StoredLinear(blob, bias, outputs, self.in_features, bits=self.bits, dtype=self.dtype)

    def _levels(self) -> Levels:
        """Bring the levels out of the blob again."""
        n, each = len(self.blob), WORD // self.bits
        scales, shifts = self.blob[..., :BLOCK], self.blob[..., BLOCK : 2 * BLOCK]
        words = self.blob[..., 2 * BLOCK :]
        moved = torch.arange(each, dtype=torch.int32) * self.bits
        levels = words.view(n, -1, GROUP // each, BLOCK, 1) >> moved & (1 << self.bits) - 1
        rows = levels.permute(0, 3, 1, 2, 4).reshape(n * BLOCK, -1).to(torch.uint8)
        by_group = (part.view(torch.float32).mT.reshape(n * BLOCK, -1) for part in (scales, shifts))
        found = Levels(self.bits, rows, *by_group)
        return found.by_rows(lambda part: part[: self.out_features])


def store(levels: Levels, bias: Tensor | None, dtype: torch.dtype) -> StoredLinear:
    """The levels of a weight for the kernels, which make numbers of `dtype` of them."""
    outputs, inputs = levels.shape
    if inputs % GROUP:
        raise ValueError(f"{inputs} inputs are no whole groups of {GROUP}")
    n, groups, each = -(-outputs // BLOCK), inputs // GROUP, WORD // levels.bits
    room = GROUP // each
    blob = large_pages.zeros(n * groups * (2 + room) * BLOCK, torch.int32).view(n, groups, -1)
    padded = levels.by_rows(lambda part: _filled(part, n * BLOCK))
    for at, part in ((0, padded.scales), (BLOCK, padded.shifts)):
        laid = part.float().view(n, BLOCK, groups).mT.contiguous()
        blob[:, :, at : at + BLOCK] = laid.view(torch.int32)
    moved = torch.arange(each, dtype=torch.int32) * levels.bits
    for block in range(n):  # a block at a time: in words levels take four times as much
        own = padded.levels[block * BLOCK : (block + 1) * BLOCK].view(BLOCK, groups, room, each)
        words = (own.to(torch.int32) << moved).sum(-1, dtype=torch.int32)
        blob[block, :, 2 * BLOCK :] = words.permute(1, 2, 0).reshape(groups, room * BLOCK)
    held = None if bias is None else bias.detach().float()
    return StoredLinear(blob, held, outputs, inputs, bits=levels.bits, dtype=dtype)


def _filled(part: Tensor, outputs: int) -> Tensor:
    """The same with noughts for the outputs that fill up the last block."""
    return torch.nn.functional.pad(part, (0, 0, 0, outputs - len(part)))
