"""Latent attention: of a token a layer keeps what keys and values of all its heads come from.

Stock layers make keys and values of all latents that are seen, anew in each pass. Here a query is
multiplied by what would make its keys and looks at latents themselves, (W k) q = k (W^T q); what a
head has gathered of them becomes its value afterwards. So a latent is read as it is held, once for
all heads. Beside it stands a part of keys that is turned by positions, and is that of all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import reads
from ppdbench.engine.flat.norms import write_norm
from ppdbench.engine.flat.products import FlatProduct, product_of
from ppdbench.engine.flat.understood import NotUnderstoodError, RefusedError
from ppdbench.engine.flat.weights import FlatLinear, blob_bytes, in_blocks, pack

if TYPE_CHECKING:
    from ppdbench.engine.flat.ops import Buffer, Program
    from ppdbench.engine.flat.rotation import HeadTurn

# Parts of blocks by their usual names: what gives latents, their norm, and what makes keys and
# values of them; what gives queries, in two steps or in one; what lets each head through.
LATENTS, LATENTS_NORM, EXPANSION = "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"
NARROW_QUERIES, QUERIES_NORM, WIDE_QUERIES = "q_a_proj", "q_a_layernorm", "q_b_proj"
QUERIES = "q_proj"
HEAD_GATES = "g_proj"
GATINGS = ("sigmoid", "softplus")


def is_latent(block: nn.Module) -> bool:
    """True for attention that keeps what keys and values come from."""
    return hasattr(block, LATENTS)


def parts_of(block: nn.Module) -> set[str]:
    """Names of the parts that such a block may have up to its output."""
    gates = {HEAD_GATES} if gating_of(block) else set[str]()
    queries = {NARROW_QUERIES, QUERIES_NORM, WIDE_QUERIES, QUERIES}
    return {LATENTS, LATENTS_NORM, EXPANSION, *queries, *gates}


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The numbers of what a block keeps and looks for."""

    heads: int
    plain: int
    """Of a query, those that are not turned."""
    turned: int
    value: int
    latent: int

    @classmethod
    def of(cls, block: Any, heads: int) -> LatentSizes:
        """The sizes that a block says."""
        query = block.qk_nope_head_dim, block.qk_rope_head_dim
        return cls(heads, *query, block.v_head_dim, block.kv_lora_rank)

    @property
    def values_of_heads(self) -> list[tuple[int, int]]:
        """The first output that makes the value of each head, and how many do."""
        each = self.plain + self.value
        return [(head * each + self.plain, self.value) for head in range(self.heads)]

    def copied_bytes(self, dtype: torch.dtype) -> int:
        """The bytes of what is held once more, for all heads."""
        copied = sum(not in_blocks(*outputs) for outputs in self.values_of_heads)
        values = copied * blob_bytes(self.value, self.latent, dtype)
        return self.heads * blob_bytes(self.latent, self.plain, dtype) + values

    @property
    def query(self) -> int:
        """Of a query as its product gives it: what is turned comes last."""
        return self.plain + self.turned

    @property
    def key(self) -> int:
        """Of a query as it looks at what is kept: what is turned comes first."""
        return self.turned + self.latent


@dataclass(frozen=True, slots=True)
class HeadProducts:
    """One product taken apart by heads."""

    to_latents: tuple[FlatLinear, ...]
    """Give, of the part of a query that is not turned, what it looks for in latents."""
    to_values: tuple[FlatLinear, ...]
    """Give, of latents as a head has gathered them, its value."""
    nbytes: int
    """Bytes that they hold beside the memory of the product itself."""


_APART: WeakKeyDictionary[FlatLinear, HeadProducts] = WeakKeyDictionary()


def head_products(product: FlatLinear, sizes: LatentSizes) -> HeadProducts:
    """Take apart the product that makes keys and values of latents.

    What makes keys is multiplied by the other way round, so it is there once more then, however
    many programs use it; what makes the value of a head only where it is no blocks of its own.
    """
    if product.bias is not None:
        raise NotUnderstoodError(f"{EXPANSION} has a bias")
    if product not in _APART:
        weights = product.unpacked().view(sizes.heads, sizes.plain + sizes.value, sizes.latent)
        keys, values = weights[:, : sizes.plain], weights[:, sizes.plain :]
        to_latents = tuple(_held(pack(weight.t()), weight.t()) for weight in keys)
        to_values = tuple(
            _held(product.outputs(*of_head) or pack(weight), weight)
            for of_head, weight in zip(sizes.values_of_heads, values, strict=True)
        )
        nbytes = sum(p.nbytes for p in (*to_latents, *to_values) if not p.lies_in(product))
        _APART[product] = HeadProducts(to_latents, to_values, nbytes)
    return _APART[product]


def copied_bytes(modules: Iterable[nn.Module]) -> int:
    """The bytes that products of these modules are held in once more, taken apart by heads."""
    products = {m.flat for m in modules if isinstance(m, FlatProduct)}
    return sum(_APART[product].nbytes for product in products if product in _APART)


def reckoned_bytes(layers: Iterable[nn.Module], heads: int, dtype: torch.dtype) -> int:
    """The same of layers whose weights are not there yet."""
    blocks = (part for layer in layers for part in layer.modules() if is_latent(part))
    return sum(LatentSizes.of(block, heads).copied_bytes(dtype) for block in blocks)


def _held(made: FlatLinear, weight: Tensor) -> FlatLinear:
    if not made.holds(weight, None):
        raise RefusedError(f"a product of {made.out_features} columns holds other weights")
    return made


class LatentAttention:
    """Writes the attention of one block, up to what goes into its output.

    `room` makes or finds a buffer by its name and width.
    """

    def __init__(
        self, program: Program, room: Callable[[str, int], Buffer], block: nn.Module, heads: int
    ) -> None:
        self.program, self.room, self.block = program, room, block
        self.sizes = LatentSizes.of(block, heads)

    def write(self, source: Buffer, turn: HeadTurn | None, layer: int, **how: Any) -> Buffer:
        """Write it as that of a layer; `how` goes to the operation that attends."""
        size, program = self.sizes, self.program
        if turn is not None and turn.width != size.turned:
            raise NotUnderstoodError(f"it turns {turn.width} of {size.turned} numbers")
        apart = head_products(product_of(self.block, EXPANSION), size)
        queries, latents, turned = self._given(source)
        write_norm(program, self.block.get_submodule(LATENTS_NORM), latents, latents)
        program.store(latents, self._turned(turned, turn), layer, 1, size.latent, size.turned)
        looking = self._looking(queries, turn, apart.to_latents)
        gathered = self.room("gathered", size.heads * size.latent)
        program.attend(
            *(looking, gathered, layer, size.heads, 1, size.key), latents=size.latent, **how
        )
        seen = self.room("attended", size.heads * size.value)
        pairs = _parts(gathered, size.latent), _parts(seen, size.value)
        program.linear_apart(*zip(*pairs, apart.to_values, strict=True))
        self._gate(source, seen)
        return seen

    def _given(self, source: Buffer) -> tuple[Buffer, Buffer, Buffer]:
        """Queries of all heads, latents, and the part of keys that is to be turned."""
        size, block, program = self.sizes, self.block, self.program
        queries = self.room("queries", size.heads * size.query)
        kept = self.room("kept", size.key)
        others = kept, product_of(block, LATENTS)
        if getattr(block, NARROW_QUERIES, None) is None:
            program.linear(source, (queries, product_of(block, QUERIES)), others)
        else:
            product = product_of(block, NARROW_QUERIES)
            narrow = self.room("narrow queries", product.out_features)
            program.linear(source, (narrow, product), others)
            write_norm(program, block.get_submodule(QUERIES_NORM), narrow, narrow)
            program.linear(narrow, (queries, product_of(block, WIDE_QUERIES)))
        return queries, kept.part(0, size.latent), kept.part(size.latent, size.turned)

    def _turned(self, given: Buffer, turn: HeadTurn | None) -> Buffer:
        """The part of keys that stands beside latents."""
        if turn is None:
            return given
        turned = self.room("turned", given.width)
        self.program.pick(given, turned, turn.way.order(given.width))
        turn.write(self.program, turned, 1, given.width)
        return turned

    def _looking(
        self, queries: Buffer, turn: HeadTurn | None, products: tuple[FlatLinear, ...]
    ) -> Buffer:
        """Queries as they look at what is kept."""
        size, program = self.sizes, self.program
        looking = self.room("looking", size.heads * size.key)
        columns = torch.arange(size.turned) if turn is None else turn.way.order(size.turned)
        firsts = torch.arange(size.plain, queries.width, size.query)
        program.pick_heads(queries, looking, firsts[:, None] + columns)
        if turn is not None:
            turn.write(program, looking, size.heads, size.key)
        plain = [part.part(0, size.plain) for part in _parts(queries, size.query)]
        latents = [part.part(size.turned, size.latent) for part in _parts(looking, size.key)]
        program.linear_apart(*zip(plain, latents, products, strict=True))
        return looking

    def _gate(self, source: Buffer, seen: Buffer) -> None:
        """Let each head through by one number, where a block has such."""
        if not hasattr(self.block, HEAD_GATES):
            return
        sizes = self.sizes.heads, self.sizes.value
        gates = head_gates(self.program, self.room, self.block, source, *sizes)
        let_through(self.program, self.block, gates, seen)


def gating_of(block: nn.Module) -> str | None:
    """The activation of what lets attention through, in a block whose code mentions one."""
    return next((name for name in GATINGS if reads(block, name)), None)


def let_through(program: Program, block: nn.Module, gates: Buffer, seen: Buffer) -> None:
    """Let what heads have gathered through by as many numbers."""
    if (name := gating_of(block)) is None:
        raise NotUnderstoodError(f"{type(block).__name__} does not say what becomes of its gates")
    program.act(gates, seen, name, times=seen)


def head_gates(
    program: Program,
    room: Callable[[str, int], Buffer],
    block: nn.Module,
    source: Buffer,
    heads: int,
    width: int,
) -> Buffer:
    """Numbers by which heads are let through: one for all numbers of each, or one for each."""
    product, spread = product_of(block, HEAD_GATES), room("gates", heads * width)
    if product.out_features == spread.width:
        program.linear(source, (spread, product))
        return spread
    gates = room("head gates", heads)
    program.linear(source, (gates, product))
    program.pick(gates, spread, torch.arange(heads).repeat_interleave(width))
    return spread


def _parts(whole: Buffer, width: int) -> list[Buffer]:
    """The columns of a buffer, so many at a time."""
    return [whole.part(first, width) for first in range(0, whole.width, width)]
