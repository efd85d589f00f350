"""Flat products of Medusa heads: the final norm, blocks and what is each head's own as one program.

All heads read the same state, and many read words through the same rows of the model's head.
Called one by one, norms and products take longer to start than to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ppdbench.engine.flat.layers import LayerWriter
from ppdbench.engine.flat.ops import Buffer, Program
from ppdbench.engine.flat.weights import FlatLinear

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter

AT_ONCE = 32  # states: what every head makes of them is kept in between


@dataclass(frozen=True, slots=True)
class FlatHead:
    """The products of one head: its blocks, and those that read words, one behind another."""

    blocks: tuple[FlatLinear, ...]
    own: tuple[FlatLinear, ...]


class HeadStates(NamedTuple):
    """States behind the blocks, [heads, n, width], and logits that they give.

    `own` are each head's, `words` those of the rows of the model's head that they share.
    """

    states: Tensor
    own: Tensor | None
    words: Tensor | None


class FlatHeads:
    """Some heads as a program; `words` is the product that all read through, if there is one."""

    def __init__(
        self, adapter: Adapter, heads: Sequence[FlatHead], words: FlatLinear | None
    ) -> None:
        self.adapter, self.heads, self.words = adapter, tuple(heads), words
        self._program, self.width = Program(adapter.dtype, adapter.hidden_size), adapter.head_width
        own = heads[0].own
        self._own = own[-1].out_features if own else 0
        self._out = self._program.buffer(len(heads) * (self.width + self._own))
        self._write(LayerWriter(adapter, self._program).before_head())

    def first(self, count: int) -> FlatHeads:
        """Only the heads that guess least far ahead, over the same weights."""
        return FlatHeads(self.adapter, self.heads[:count], self.words)

    def read(self, hidden: Tensor) -> HeadStates:
        """Read states [n, hidden] before the final norm, which eager layers may give wider."""
        given = self.adapter.state(hidden).to(self.adapter.dtype)
        parts = [self._run(rows) for rows in torch.split(given, AT_ONCE)]
        states, own = (torch.cat(some, dim=1) for some in zip(*parts, strict=True))
        words = None if self.words is None else self.words(states)
        return HeadStates(states, own if self._own else None, words)

    def _run(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.empty(len(rows), self._out.width, dtype=self.adapter.dtype)
        self._program.run(0, self._program.mark(), rows.contiguous(), found, self._out)
        count, at = len(self.heads), len(self.heads) * self.width
        sizes = (self.width, found[:, :at]), (self._own, found[:, at:])
        states, own = (x.reshape(len(rows), count, size).transpose(0, 1) for size, x in sizes)
        return states, own

    # The program

    def _write(self, entering: Buffer) -> None:
        """Blocks x + SiLU(W x + b) of every head, and behind them what is its own."""
        program, count, width = self._program, len(self.heads), self.width
        made, grown = program.buffer(count * width), program.buffer(count * width)
        states = [made.part(h * width, width) for h in range(count)]
        parts = [grown.part(h * width, width) for h in range(count)]
        sources = [entering] * count
        for level in range(len(self.heads[0].blocks)):
            products = [head.blocks[level] for head in self.heads]
            if level:
                for source, part, product in zip(sources, parts, products, strict=True):
                    program.linear(source, (part, product))
            else:
                program.linear(entering, *zip(parts, products, strict=True))
            program.act(grown, grown, "silu")
            for source, part, state in zip(sources, parts, states, strict=True):
                program.add(source, part, state)
            sources = states
        if not self.heads[0].blocks:
            for state in states:
                program.copy(entering, state)
        program.copy(made, self._out.part(0, made.width))
        for number, (state, head) in enumerate(zip(states, self.heads, strict=True)):
            if head.own:
                target = self._out.part(count * width + number * self._own, self._own)
                self._write_own(state, target, head.own)

    def _write_own(self, source: Buffer, target: Buffer, products: Sequence[FlatLinear]) -> None:
        for product in products[:-1]:
            between = self._program.buffer(product.out_features)
            self._program.linear(source, (between, product))
            source = between
        self._program.linear(source, (target, products[-1]))
