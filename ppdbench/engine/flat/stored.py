"""Weights laid out as files store them, in 4 or 8 bits, for kernels that unpack them on the way.

Rows are multiplied by the very numbers that plain weights would hold, in the same order: a product
is the same bit by bit. What differs is how many bytes memory has to send.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.engine.flat.native import FOR_TILES, HALVES, STORED_FORMS, Columns, Product, loaded
from ppdbench.engine.flat.weights import BLOCK, FlatLinear, in_blocks
from ppdbench.engine.levels import GROUP, Levels
from ppdbench.machine.pages import large_pages

WORD = 32  # bits
# A word of one input, of as many outputs as it has room for, by the bits of a level.
TILE_WORD = {4: torch.int16, 8: torch.uint8}
AT_ONCE = 1 << 22  # weights that are looked at


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The order of a blob's groups: see stored.h, and stored_tiles.h for matrix tiles.

    `halves` says that scales and shifts are of 16 bits.
    """

    bits: int
    for_tiles: bool
    halves: bool

    @property
    def number(self) -> int:
        """The form as the kernels number it."""
        return STORED_FORMS[self.bits] | FOR_TILES * self.for_tiles | HALVES * self.halves

    @property
    def scale_type(self) -> torch.dtype:
        """The type of scales and shifts."""
        return torch.float16 if self.halves else torch.float32

    @property
    def scale_words(self) -> int:
        """The words of a group that hold its scales and shifts."""
        return 2 * BLOCK * 8 * self.scale_type.itemsize // WORD

    @property
    def words(self) -> int:
        """The words of a group."""
        return self.scale_words + GROUP * BLOCK * self.bits // WORD

    def in_words(self, levels: Tensor) -> Tensor:
        """The levels of a block in words: [32 outputs, groups, 32 inputs] as [groups, words]."""
        each, places, (_, groups, _) = self._each, self._places, levels.shape
        if self.for_tiles:
            apart = levels.view(BLOCK // each, each, groups, GROUP).to(torch.int32)
            words = (apart << places.view(-1, 1, 1)).sum(1, dtype=torch.int32)
            laid = words.movedim(1, 0).to(TILE_WORD[self.bits]).reshape(groups, -1)
            return laid.view(torch.int32)
        apart = levels.view(BLOCK, groups, GROUP // each, each).to(torch.int32)
        words = (apart << places).sum(-1, dtype=torch.int32)
        return words.permute(1, 2, 0).reshape(groups, -1)

    def of_words(self, words: Tensor) -> Tensor:
        """Bring levels out of words: [blocks, groups, words] as [blocks, 32 outputs, inputs]."""
        (n, groups, _), each, places = words.shape, self._each, self._places
        if self.for_tiles:
            held = words.contiguous().view(TILE_WORD[self.bits]).to(torch.int32)
            apart = held.view(n, groups, -1, 1, GROUP) >> places.view(-1, 1)
            levels = apart.view(n, groups, BLOCK, GROUP).movedim(2, 1)
        else:
            held = words.reshape(n, groups, GROUP // each, BLOCK, 1)
            levels = (held >> places).permute(0, 3, 1, 2, 4)
        mask = (1 << self.bits) - 1
        return (levels & mask).reshape(n, BLOCK, -1).to(torch.uint8)

    @property
    def _each(self) -> int:
        """The levels of a word."""
        return (TILE_WORD[self.bits].itemsize * 8 if self.for_tiles else WORD) // self.bits

    @property
    def _places(self) -> Tensor:
        """The first bits of levels in a word."""
        return torch.arange(self._each, dtype=torch.int32) * self.bits


class StoredLinear(FlatLinear):
    """y = x W^T + b over levels of W, their scales and their shifts."""

    def __init__(
        self,
        blob: Tensor,
        bias: Tensor | None,
        outputs: int,
        inputs: int,
        *,
        form: StoredForm,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(blob, bias, outputs, inputs)
        self._form, self._dtype = form, dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def product(self, target: Columns | None = None, first: int = 0) -> Product:
        made = super().product(target, first)
        made.form = self._form.number
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
        return StoredLinear(
            blob, bias, outputs, self.in_features, form=self._form, dtype=self.dtype
        )

    def _levels(self) -> Levels:
        """Bring the levels out of the blob again."""
        form = self._form
        levels = form.of_words(self.blob[..., form.scale_words :]).flatten(0, 1)
        scales = self.blob.view(form.scale_type)
        parts = scales[..., :BLOCK], scales[..., BLOCK : 2 * BLOCK]
        by_group = (part.float().mT.flatten(0, 1) for part in parts)
        found = Levels(form.bits, levels, *by_group)
        return found.by_rows(lambda part: part[: self.out_features])


def store(levels: Levels, bias: Tensor | None, dtype: torch.dtype) -> StoredLinear:
    """The levels of a weight for the kernels, which make numbers of `dtype` of them."""
    outputs, inputs = levels.shape
    if inputs % GROUP:
        raise ValueError(f"{inputs} inputs are no whole groups of {GROUP}")
    n, groups = -(-outputs // BLOCK), inputs // GROUP
    form = _form_of(levels, dtype)
    blob = large_pages.zeros(n * groups * form.words, torch.int32).view(n, groups, form.words)
    padded = levels.by_rows(lambda part: _filled(part, n * BLOCK))
    scales = blob.view(form.scale_type)
    for at, part in ((0, padded.scales), (BLOCK, padded.shifts)):
        scales[..., at : at + BLOCK] = part.view(n, BLOCK, groups).mT
    for block in range(n):  # a block at a time: in words levels take four times as much
        own = padded.levels[block * BLOCK : (block + 1) * BLOCK].view(BLOCK, groups, GROUP)
        blob[block, :, form.scale_words :] = form.in_words(own)
    held = None if bias is None else bias.detach().float()
    return StoredLinear(blob, held, outputs, inputs, form=form, dtype=dtype)


def _form_of(levels: Levels, dtype: torch.dtype) -> StoredForm:
    """The smallest form that changes no number, in the order that kernels multiply fastest."""
    parts = (levels.scales, levels.shifts)
    halves = all(torch.equal(part.half().float(), part.float()) for part in parts)
    return StoredForm(levels.bits, dtype == torch.bfloat16 and loaded().in_tiles, halves)


def _filled(part: Tensor, outputs: int) -> Tensor:
    """The same with noughts for the outputs that fill up the last block."""
    return torch.nn.functional.pad(part, (0, 0, 0, outputs - len(part)))
