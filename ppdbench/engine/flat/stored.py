"""Weights laid out as files store them, in 4 or 8 bits, for kernels that unpack them on the way.

Rows are multiplied by the very numbers that plain weights would hold, in the same order: a product
is the same bit by bit. What differs is how many bytes memory has to send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.engine.flat.native import FOR_TILES, HALVES, STORED_FORMS, Columns, Product, loaded
from ppdbench.engine.flat.weights import BLOCK, FlatLinear, in_blocks, widened
from ppdbench.engine.levels import GROUP, Levels
from ppdbench.machine.pages import large_pages

# Bits of a word; where it is for tiles, by those of a level: it is of one input, and of as many
# outputs as it has room for.
NIBBLE, BYTE, WORD = 4, 8, 32
TILE_WORD = {NIBBLE: 16, BYTE: 8}
AT_ONCE = 1 << 19  # weights that are laid out or looked at: what is made of them stays in caches


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
        """Levels in words: [blocks, 32 outputs, groups, 32 inputs] as [blocks, groups, words]."""
        each, (n, _, groups, _) = self._each, levels.shape
        if self.for_tiles:
            apart = levels.view(n, -1, each, groups, GROUP).permute(0, 3, 1, 4, 2)
        else:
            apart = levels.view(n, BLOCK, groups, -1, each).permute(0, 2, 3, 1, 4)
        if self.bits == NIBBLE:
            apart = apart[..., ::2] | apart[..., 1::2] << NIBBLE
        return apart.contiguous().view(n, groups, -1).view(torch.int32)

    def of_words(self, words: Tensor) -> Tensor:
        """Bring levels out of words: [blocks, groups, words] as [blocks, 32 outputs, inputs]."""
        n, groups, _ = words.shape
        held = words.contiguous().view(torch.uint8)
        held = held.view(n, groups, -1, BLOCK, self._each * self.bits // BYTE)
        if self.for_tiles:
            ordered, pairs = held.permute(0, 2, 4, 1, 3).contiguous(), 3
        else:
            ordered, pairs = held.permute(0, 3, 1, 2, 4).contiguous(), 5
        if self.bits == NIBBLE:
            lower, upper = ordered & (1 << NIBBLE) - 1, ordered >> NIBBLE
            ordered = torch.stack((lower, upper), pairs)
        return ordered.view(n, BLOCK, groups * GROUP)

    @property
    def _each(self) -> int:
        """The levels of a word."""
        return (TILE_WORD[self.bits] if self.for_tiles else WORD) // self.bits


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
        return self._over(self.blob, widened(bias), self.out_features)

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
        for some in _some_blocks(len(self.blob), self.in_features):
            begin, part = some.start * BLOCK, self.blob[some]
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
    by_block = padded.levels.view(n, BLOCK, groups, GROUP)
    for some in _some_blocks(n, inputs):
        blob[some, :, form.scale_words :] = form.in_words(by_block[some])
    return StoredLinear(blob, widened(bias), outputs, inputs, form=form, dtype=dtype)


def _some_blocks(blocks: int, inputs: int) -> Iterator[slice]:
    """Some blocks of a weight after another."""
    at_once = max(1, AT_ONCE // (BLOCK * inputs))
    return (slice(first, first + at_once) for first in range(0, blocks, at_once))


def _form_of(levels: Levels, dtype: torch.dtype) -> StoredForm:
    """The smallest form that changes no number, in the order that kernels multiply fastest."""
    parts = (levels.scales, levels.shifts)
    halves = all(torch.equal(part.half().float(), part.float()) for part in parts)
    return StoredForm(levels.bits, dtype == torch.bfloat16 and loaded().in_tiles, halves)


def _filled(part: Tensor, outputs: int) -> Tensor:
    """The same with noughts for the outputs that fill up the last block."""
    return torch.nn.functional.pad(part, (0, 0, 0, outputs - len(part)))
