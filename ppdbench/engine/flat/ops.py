"""Programs: operations over numbered rows of float32, run by one call.

Rows of a bfloat16 model hold bfloat16 values: each operation rounds where stock modules would
hold bfloat16.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import math
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import gt
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ppdbench.engine.flat.native import (
    KINDS,
    Columns,
    Operation,
    PassData,
    Product,
    ProgramRun,
    Span,
    loaded,
)
from ppdbench.engine.flat.weights import DTYPES, FlatLinear
from ppdbench.engine.reading import Peaks
from ppdbench.machine.threads import threads

# As simd.h numbers them.
ACTIVATIONS = {
    name: number
    for number, name in enumerate(
        ("silu", "gelu_tanh", "gelu", "relu", "relu2", "sigmoid", "softplus")
    )
}
# As operations.h numbers them.
PLUS_ONE, ROUND_FIRST, ONTO, TIMES, NEIGHBOURS, COARSE = 1, 2, 4, 8, 16, 32
APART, LATENTS = 64, 128
NOT_STORED = -1
Numbers: TypeAlias = "np.ndarray | array[int]"  # int32
# Heads that a unit of work looks for, where one row serves all: as many as are scored at once.
TOGETHER = 8


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of `width` numbers, of wider rows those from column `first` on."""

    number: int
    width: int
    first: int = 0

    def part(self, first: int, width: int) -> Buffer:
        """Take some of the columns."""
        if first < 0 or width < 1 or first + width > self.width:
            raise ValueError(f"columns {first}..{first + width} of {self.width}")
        return Buffer(self.number, width, self.first + first)

    @property
    def columns(self) -> Columns:
        """The same as the kernels take it."""
        return Columns(self.number, self.first)


class CacheBlocks:
    """The keys and values of each layer: [1, heads, capacity, width] each, in each of a size.

    All are of one capacity.
    """

    caches = 1
    _kept: tuple[CacheBlocks, ...] = ()

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        for pair in layers:
            for rows in pair:
                if rows.dim() != 4 or rows.shape[0] != 1 or not rows.is_contiguous():
                    raise ValueError(f"cache rows of shape {tuple(rows.shape)}")
        self.layers = tuple(layers)
        self.capacity = layers[0][0].shape[2]
        sizes = [{(*rows.shape[2:],) for rows in pair} for pair in layers]
        if any(len(each) > 1 or (*each,)[0][0] != self.capacity for each in sizes):
            raise ValueError(f"rows of {sizes}: of one capacity all, of one width those of a layer")
        self._widths = np.array([keys.shape[3] for keys, _ in layers], dtype=np.int64)
        self._keep(np.array([[rows.data_ptr() for rows in pair] for pair in layers]).T.copy())

    def _keep(self, places: np.ndarray) -> None:
        keys, values = self._places = places
        # The place of the widths of rows, and those of the addresses of keys and values, by layer.
        self.widths: int = self._widths.ctypes.data
        self.addresses: tuple[int, int] = keys.ctypes.data, values.ctypes.data

    @classmethod
    def joined(cls, several: Sequence[CacheBlocks]) -> CacheBlocks:
        """Join the rows of several caches, one behind another; all must have one capacity."""
        first = several[0]
        if any((b.capacity, len(b.layers)) != (first.capacity, len(first.layers)) for b in several):
            raise ValueError(f"caches of {sorted({b.capacity for b in several})} rows in one pass")
        made = copy.copy(first)
        made.caches, made._kept = len(several), tuple(several)
        made._keep(np.concatenate([b._places for b in several], axis=1))
        return made


def _addresses(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


class Turns:
    """Cosines and sines by kind, float32: of every position, or [row, width] of one pass.

    Those of every position [position, width] are `whole`: rows are turned by where they stand.
    """

    def __init__(self, tables: Sequence[tuple[Tensor, Tensor]], *, whole: bool) -> None:
        for part in itertools.chain(*tables):
            if part.dtype != torch.float32 or not part.is_contiguous():
                raise ValueError(f"turns {tuple(part.shape)} of {part.dtype}")
        self.tables, self.whole = tuple(tables), whole
        self.counts = {len(part) for table in tables for part in table}
        self.cos = _addresses([cos for cos, _ in tables])
        self.sin = _addresses([sin for _, sin in tables])

    def of(self, rows: slice) -> Turns:
        """The same for some rows of a pass."""
        if self.whole:
            return self
        return Turns([(cos[rows], sin[rows]) for cos, sin in self.tables], whole=False)

    def check(self, rows: int, positions: Numbers) -> None:
        """Refuse a pass over rows, or positions, that they are not made for."""
        if not self.whole:
            if self.counts - {rows}:
                raise ValueError(f"turns of {sorted(self.counts)} rows for {rows}")
            return
        first, last = _bounds(positions)
        if first < 0:
            raise ValueError("a row stands before the first position")
        if self.counts and last >= min(self.counts):
            raise ValueError(f"turns of {min(self.counts)} positions for a row at {last}")


UNTURNED = Turns((), whole=False)


class Pass:
    """The rows of one pass: where they stand, where they are stored, what they see.

    Row i sees the cache slots before `start` (or before `reach[i]`), whose positions are their
    numbers, then `seen[offsets[i]:offsets[i + 1]]` in the order of positions, itself the last:
    those positions are `places`, or one after another up to its own. Rows whose slot is
    `NOT_STORED` have their keys and values in the cache already. In a `causal` pass it sees all
    slots up to `start + i`, without lists. Where `blocks` are of several caches, `owners` says of
    each row which one it is of: all other numbers of slots are of that one.
    """

    def __init__(
        self,
        start: int,
        slots: Any,
        positions: Any,
        seen: Any,
        offsets: Any,
        turns: Turns,
        blocks: CacheBlocks,
        *,
        causal: bool = False,
        reach: Any = None,
        owners: Any = None,
        places: Any = None,
    ) -> None:
        given = (slots, positions, reach, seen, places, offsets, owners)
        lists = [None if some is None else _numbers(some) for some in given]
        rows = len(lists[0]) if lists[0] is not None else 0
        _check_lists(rows, start, lists, blocks, causal)
        if seen is not None and places is None:
            lists[4] = _in_line(lists[1], lists[5])
        self._describe(rows, start, causal, lists, turns, blocks)

    @classmethod
    def of_single(cls, slots: Sequence[int], turns: Turns, blocks: CacheBlocks) -> Pass:
        """One row of each of several caches, which sees all before it and itself.

        The same as from lists, in a fraction of the time: most passes of a batch are of this kind.
        """
        rows = len(slots)
        if not 1 < rows == blocks.caches or min(slots) < 0 or max(slots) >= blocks.capacity:
            raise ValueError(f"slots {slots} of {blocks.caches} caches of {blocks.capacity} rows")
        made = cls.__new__(cls)
        places, reach = array("i", slots), array("i", [slot + 1 for slot in slots])
        nothing, offsets, owners = _one_each(rows)
        lists = [places, places, reach, nothing, nothing, offsets, owners]
        made._describe(rows, 0, False, lists, turns, blocks)
        return made

    def _describe(
        self,
        rows: int,
        start: int,
        causal: bool,
        lists: Sequence[Numbers | None],
        turns: Turns,
        blocks: CacheBlocks,
    ) -> None:
        """Lay down what kernels read; lists have been checked."""
        assert lists[1] is not None
        turns.check(rows, lists[1])
        self.rows = rows
        self._kept = lists, turns, blocks
        self.data = PassData(
            rows,
            start,
            blocks.capacity,
            len(blocks.layers),
            blocks.widths,
            causal,
            *(None if some is None else _address(some) for some in lists),
            *(None, 0),
            *blocks.addresses,
            turns.whole,
            ctypes.addressof(turns.cos),
            ctypes.addressof(turns.sin),
        )


class Program:
    """A list of operations over buffers, of which `hidden` is what comes in."""

    def __init__(self, dtype: torch.dtype, width: int) -> None:
        if dtype not in DTYPES:
            raise TypeError(f"a program over {dtype}; use float32 or bfloat16")
        self.dtype = dtype
        self._narrow = dtype == torch.bfloat16
        self._widths: list[int] = []
        self._ops: list[Operation] = []
        self._kept: list[Any] = []
        self._made: _Made | None = None
        self.hidden = self.buffer(width)

    def buffer(self, width: int) -> Buffer:
        """Make room for rows of `width` numbers."""
        self._widths.append(width)
        self._made = None
        return Buffer(len(self._widths) - 1, width)

    def mark(self) -> int:
        """Count the operations so far."""
        return len(self._ops)

    # Operations

    def linear(
        self, source: Buffer, *pairs: tuple[Buffer, FlatLinear], add: Buffer | None = None
    ) -> None:
        """Products of one source, all one job: target = x W^T + b, or that onto `add`."""
        for target, weight in pairs:
            self._check_product(source, target, weight)
        if not pairs or (add is not None and (len(pairs) > 1 or add.width != pairs[0][0].width)):
            raise ValueError("a product onto a buffer is one, as wide as it")
        op = self._op("linear", source, other=add, flags=0 if add is None else ONTO)
        self._hand(op, [(0, *pair) for pair in pairs])

    def linear_apart(self, *triples: tuple[Buffer, Buffer, FlatLinear]) -> None:
        """Products of parts of one buffer, each of a part of its own, all one job."""
        for source, target, weight in triples:
            self._check_product(source, target, weight)
        if len({(source.number, source.width) for source, _, _ in triples}) != 1:
            raise ValueError("products of parts read one buffer, each as much of it")
        op = self._op("linear", replace(triples[0][0], first=0), flags=APART)
        self._hand(op, [(source.first, target, weight) for source, target, weight in triples])

    def gated(
        self, source: Buffer, target: Buffer, gate: FlatLinear, up: FlatLinear, act: str
    ) -> None:
        """act(gate x) * (up x), one job."""
        for weight in (gate, up):
            self._check_product(source, target, weight)
        op = self._op("gated", source, act=_activation(act))
        self._hand(op, [(0, target, gate), (0, target, up)])

    def rms_norm(
        self,
        source: Buffer,
        target: Buffer,
        weight: Tensor,
        eps: float,
        *,
        plus_one: bool = False,
        round_first: bool = True,
        each: int | None = None,
    ) -> None:
        """Rows over their root mean square, or every `each` numbers for themselves."""
        count = source.width if each is None else each
        _same_width(source, target)
        if source.width % count or weight.numel() != count:
            raise ValueError(f"{weight.numel()} weights for norms of {count} of {source.width}")
        flags = PLUS_ONE * plus_one | ROUND_FIRST * round_first
        held = self._floats(weight)
        self._op("rms_norm", source, target, flags=flags, count=count, weight=held, value=eps)

    def layer_norm(
        self,
        source: Buffer,
        target: Buffer,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> None:
        """Rows less their mean, over their deviation."""
        _same_width(source, target)
        for given in (weight, bias):
            if given is not None and given.numel() != source.width:
                raise ValueError(f"{given.numel()} weights for a norm of {source.width}")
        norm: dict[str, Any] = {
            "weight": self._floats(weight),
            "bias": self._floats(bias),
            "value": eps,
        }
        self._op("layer_norm", source, target, **norm)

    def rotate(
        self,
        target: Buffer,
        heads: int,
        head_dim: int,
        rotary_dim: int,
        kind: int = 0,
        *,
        neighbours: bool = False,
        round_first: bool = True,
    ) -> None:
        """Turn heads by their positions, in place: number i with number i + rotary_dim / 2.

        Or `neighbours` with one another. Products are rounded first, or their sum alone.
        """
        if heads * head_dim != target.width or rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
            raise ValueError(f"{rotary_dim} of {heads} x {head_dim} in {target.width} numbers")
        sizes: dict[str, Any] = {
            "heads": heads,
            "head_dim": head_dim,
            "rotary_dim": rotary_dim,
            "turn": kind,
            "flags": NEIGHBOURS * neighbours | ROUND_FIRST * round_first,
        }
        self._op("rotate", target, target, **sizes)

    def store(
        self,
        keys: Buffer,
        values: Buffer,
        layer: int,
        heads: int,
        head_dim: int,
        value_dim: int | None = None,
    ) -> None:
        """Write the pass's keys and values to the cache; values may be of a width of their own."""
        value_dim = head_dim if value_dim is None else value_dim
        if (keys.width, values.width) != (heads * head_dim, heads * value_dim):
            raise ValueError(
                f"{heads} x {head_dim} and {value_dim} of {keys.width} and {values.width} numbers"
            )
        sizes: dict[str, Any] = {"heads": heads, "head_dim": head_dim, "value_dim": value_dim}
        self._op("store", keys, other=values, layer=layer, **sizes)

    def attend(
        self,
        queries: Buffer,
        target: Buffer,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        *,
        slopes: Tensor | None = None,
        coarse: bool = False,
        sinks: Tensor | None = None,
        latents: int = 0,
        value_dim: int | None = None,
        value_heads: range | None = None,
    ) -> None:
        """Softmax attention of each row over the keys that it sees.

        Before they are scaled, scores of a head grow by its slope for each position that a key
        lies further on; by what is rounded to bfloat16 and counted from the first, if that is
        `coarse`. Of a head's attention a part goes to its sink, and to no key. With `latents`, so
        many numbers are held as the keys of one head and are the values of all; behind what is
        held as values they are the keys. Values may be of a width of their own; of `value_heads`
        heads of keys take them in turn.
        """
        if latents and (kv_heads != 1 or latents >= head_dim):
            raise ValueError(f"{latents} of {head_dim} numbers of {kv_heads} heads serve all")
        value_dim = latents or value_dim or head_dim
        widths = queries.width, target.width
        if widths != (heads * head_dim, heads * value_dim) or heads % kv_heads:
            raise ValueError(f"{heads} heads of {kv_heads} kinds in {widths} numbers")
        if value_heads is not None and (
            latents or not 0 <= value_heads.start < value_heads.stop <= kv_heads
        ):
            raise ValueError(f"values of the heads {value_heads} of {kv_heads}")
        for each in (slopes, sinks):
            if each is not None and each.shape != (heads,):
                raise ValueError(f"{tuple(each.shape)} slopes or sinks of {heads} heads")
        sizes: dict[str, Any] = {
            "heads": heads,
            "kv_heads": heads // math.gcd(heads, TOGETHER) if latents else kv_heads,
            "head_dim": head_dim,
            "value_dim": value_dim,
            "layer": layer,
            "first_value": value_heads.start if value_heads else 0,
            "value_heads": len(value_heads or ()),
            "weight": self._floats(slopes),
            "bias": self._floats(sinks),
            "flags": COARSE * coarse | LATENTS * bool(latents),
        }
        how: dict[str, Any] = {"value": scale, "cap": softcap or 0.0, "window": window or 0}
        self._op("attend", queries, target, **sizes, **how)

    def act(self, source: Buffer, target: Buffer, name: str, times: Buffer | None = None) -> None:
        """An activation; then times another buffer."""
        _same_width(source, target, times)
        flags = 0 if times is None else TIMES
        self._op("act", source, target, other=times, act=_activation(name), flags=flags)

    def xielu(self, source: Buffer, target: Buffer, factors: tuple[float, float, float]) -> None:
        """Of factors a, b and c: a * x * x above zero, b * (e^x - 1 - x) below it, and c * x."""
        _same_width(source, target)
        held = torch.tensor(factors, dtype=torch.float32)
        self._kept.append(held)
        self._op("xielu", source, target, weight=held.data_ptr())

    def add(self, a: Buffer, b: Buffer, target: Buffer) -> None:
        """The sum of two buffers."""
        _same_width(a, b, target)
        self._op("add", a, target, other=b)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """The same numbers elsewhere."""
        _same_width(source, target)
        self._op("copy", source, target)

    def pick(self, source: Buffer, target: Buffer, order: Tensor) -> None:
        """Columns in another order: target[j] = source[order[j]]."""
        if len(order) != target.width:
            raise ValueError(f"{len(order)} columns for {target.width}")
        self.pick_heads(source, target, order[None])

    def pick_heads(self, source: Buffer, target: Buffer, order: Tensor) -> None:
        """Columns, by `order` [head, column], to the front of each head of the target."""
        held = order.to(torch.int32).contiguous()
        (heads, count), head_dim = held.shape, target.width // len(held)
        if heads * head_dim != target.width or count > head_dim:
            raise ValueError(f"{heads} x {count} columns for {target.width}")
        if not 0 <= int(held.min()) <= int(held.max()) < source.width:
            raise ValueError(f"columns {held.min()}..{held.max()} of {source.width}")
        self._kept.append(held)
        sizes: dict[str, Any] = {"heads": heads, "head_dim": head_dim, "count": count}
        self._op("pick", source, target, order=held.data_ptr(), width=held.numel(), **sizes)

    def cap(self, source: Buffer, target: Buffer, value: float) -> None:
        """tanh(x / value) * value."""
        _same_width(source, target)
        self._op("cap", source, target, value=value)

    def scale(self, source: Buffer, target: Buffer, factor: float) -> None:
        """Every number times a factor."""
        _same_width(source, target)
        self._op("scale", source, target, value=factor)

    def weigh(self, source: Buffer, target: Buffer, weight: Tensor) -> None:
        """Every number times a weight of its own."""
        _same_width(source, target)
        if weight.shape != (source.width,):
            raise ValueError(f"{tuple(weight.shape)} weights for {source.width} numbers")
        self._op("scale", source, target, value=1.0, weight=self._floats(weight))

    def mix(self, source: Buffer, factors: Buffer, target: Buffer, parts: int) -> None:
        """Onto each part of the target the parts of the source, each times a factor of the pair."""
        width = target.width // parts
        count = source.width // width
        sizes = parts * width, count * width, parts * count
        if sizes != (target.width, source.width, factors.width):
            raise ValueError(f"{parts} x {count} parts in {target}, {source} and {factors}")
        if source.number == target.number:
            raise ValueError("parts cannot be mixed where they are read from")
        more: dict[str, Any] = {"width": width, "count": count, "heads": parts}
        self._op("mix", source, target, other=factors, **more)

    def cut(self, source: Buffer, target: Buffer, deviations: float) -> None:
        """Numbers less what lies so many deviations above the mean of a row, or nought if below."""
        _same_width(source, target)
        self._op("cut", source, target, value=deviations)

    def clip(self, source: Buffer, target: Buffer, most: float) -> None:
        """Numbers as near to nought as `most` where they lie further from it."""
        _same_width(source, target)
        self._op("clip", source, target, value=most)

    # Runs

    def run(
        self,
        first: int,
        last: int,
        source: Tensor,
        target: Tensor,
        out: Buffer,
        given: Pass | None = None,
        peaks: Peaks | None = None,
        words: Tensor | FlatLinear | None = None,
    ) -> None:
        """Run these operations at once: see `call`."""
        run_all([self.call(first, last, source, target, out, given, peaks, words)])

    def call(
        self,
        first: int,
        last: int,
        source: Tensor,
        target: Tensor,
        out: Buffer,
        given: Pass | None = None,
        peaks: Peaks | None = None,
        words: Tensor | FlatLinear | None = None,
    ) -> Call:
        """Operations [first, last) over rows `source` [row, width]; `out` goes into `target`.

        With `words` [word, width] `source` are tokens [row], whose rows of these come in. These may
        be a weight that is laid out.
        `peaks` notes the largest number of each row of `out`. Tensors may have a 1 before rows.
        """
        self._check_run(source, target, out, given, peaks, words)
        if not 0 <= first <= last <= len(self._ops):
            raise ValueError(f"operations {first}..{last} of {len(self._ops)}")
        made = self._made or self._make()
        data = PassData() if given is None else PassData.from_buffer_copy(given.data)
        data.rows = target.shape[-2]
        if words is not None:
            data.tokens, data.in_blob = source.data_ptr(), isinstance(words, FlatLinear)
            data.words = words.out_features if isinstance(words, FlatLinear) else len(words)
        rows = source if words is None else words
        data.source = (rows.blob if isinstance(rows, FlatLinear) else rows).data_ptr()
        data.target = target.data_ptr()
        if peaks is not None:
            data.likeliest, data.peaks = _address(peaks.tokens), _address(peaks.heights)
        kept = (source, target, given, peaks, words)
        return Call(made, made.way(first, last, out), self._narrow, data, kept)

    def _check_run(
        self,
        source: Tensor,
        target: Tensor,
        out: Buffer,
        given: Pass | None,
        peaks: Peaks | None,
        words: Tensor | FlatLinear | None,
    ) -> None:
        rows, width = target.shape[-2], self.hidden.width
        _check_numbers(target, (rows, out.width), self.dtype)
        if words is None:
            _check_numbers(source, (rows, width), self.dtype)
        else:
            _check_numbers(source, (rows,), torch.int64)
            if not isinstance(words, FlatLinear):
                _check_numbers(words, (len(words), width), self.dtype)
            elif (words.in_features, words.dtype) != (width, self.dtype):
                raise ValueError(f"words of {words.in_features} numbers, {words.dtype}")
        for each in (None if given is None else given.rows, None if peaks is None else len(peaks)):
            if each is not None and each != rows:
                raise ValueError(f"{rows} rows in a pass of {each}")

    def _make(self) -> _Made:
        self._made = _Made(self._ops, self._widths, self.hidden)
        return self._made

    # Parts of operations

    def _op(
        self,
        kind: str,
        source: Buffer,
        target: Buffer | None = None,
        other: Buffer | None = None,
        **more: Any,
    ) -> Operation:
        op = Operation(kind=KINDS.index(kind), source=source.columns, width=source.width)
        if target is not None:
            op.target = target.columns
        if other is not None:
            op.other = other.columns
        for name, value in more.items():
            setattr(op, name, value)
        self._ops.append(op)
        self._made = None
        return op

    def _hand(self, op: Operation, triples: Sequence[tuple[int, Buffer, FlatLinear]]) -> None:
        """Give an operation its products: what each reads from, where it goes, its weights."""
        made = (weight.product(target.columns, first) for first, target, weight in triples)
        products = (Product * len(triples))(*made)
        op.products, op.count = products, len(triples)
        self._kept += [products, *(weight for _, _, weight in triples)]

    def _check_product(self, source: Buffer, target: Buffer, weight: FlatLinear) -> None:
        if (weight.in_features, weight.out_features) != (source.width, target.width):
            raise ValueError(
                f"{weight.in_features} to {weight.out_features} numbers from {source.width} "
                f"to {target.width}"
            )
        if weight.dtype != self.dtype:
            raise TypeError(f"weights of {weight.dtype} in a program over {self.dtype}")
        if source.number == target.number:
            raise ValueError("a product cannot be put where it reads from")

    def _floats(self, given: Tensor | None) -> int | None:
        """The address of these numbers as float32, kept as long as the program is."""
        if given is None:
            return None
        held = given.detach().float().contiguous().clone()
        self._kept.append(held)
        return held.data_ptr()


class _Made:
    """A program as the kernels take it, with ways in and out behind its own operations."""

    def __init__(self, ops: Sequence[Operation], widths: Sequence[int], hidden: Buffer) -> None:
        self._n, self._leaves = len(ops), dict[Buffer, int]()
        self._ways: dict[tuple[int, int, Buffer], Any] = {}
        enter = Operation(kind=KINDS.index("enter"), target=hidden.columns, width=hidden.width)
        self.ops = (Operation * (self._n + 1))(*ops, enter)
        counts = (ctypes.c_int64 * len(widths))(*widths)
        self.buffers = loaded().buffers(ctypes.addressof(counts), len(widths))
        if not self.buffers:
            raise MemoryError(f"no memory for {len(widths)} buffers")
        weakref.finalize(self, loaded().free, self.buffers)

    def way(self, first: int, last: int, out: Buffer) -> Any:
        """The way in, the operations [first, last), and the way out for `out`."""
        key = first, last, out
        if key not in self._ways:
            self._ways[key] = self._way(first, last, out)
        return self._ways[key]

    def _way(self, first: int, last: int, out: Buffer) -> Any:
        if out not in self._leaves:
            op = Operation(kind=KINDS.index("leave"), source=out.columns, width=out.width)
            self._leaves[out] = len(self.ops)
            self.ops = (Operation * (len(self.ops) + 1))(*self.ops, op)
        leave = self._leaves[out]
        return (Span * 3)(Span(self._n, self._n + 1), Span(first, last), Span(leave, leave + 1))


class Call:
    """A run of a program over some rows, ready to begin; it keeps what the kernels read."""

    def __init__(self, made: _Made, spans: Any, narrow: bool, data: PassData, kept: Any) -> None:
        self._kept = made, made.ops, spans, data, kept
        places = ctypes.addressof(made.ops), ctypes.addressof(spans)
        self.data = ProgramRun(made.buffers, *places, len(spans), narrow, ctypes.addressof(data))


def run_all(calls: Sequence[Call]) -> None:
    """Run programs one after another, in one go: Python behind a pass finds its caches empty."""
    runs = (ProgramRun * len(calls))(*(each.data for each in calls))
    done = loaded().run(ctypes.addressof(runs), len(calls), threads.count)
    if done < 0:
        raise IndexError("a pass over a token that the model has no word for")
    if not done:
        raise MemoryError("no memory for the rows of a pass")


def _activation(name: str) -> int:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r}; use {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _check_numbers(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a tensor of another shape, but for a 1 before it, of another type or with gaps."""
    is_shaped = tensor.shape == shape or tensor.shape == (1, *shape)
    if not is_shaped or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(
            f"rows {tuple(tensor.shape)} of {tensor.dtype}; use {shape} of {dtype}, contiguous"
        )


def _same_width(*buffers: Buffer | None) -> None:
    if len({b.width for b in buffers if b is not None}) != 1:
        raise ValueError(f"buffers of {[b.width for b in buffers if b is not None]} numbers")


def _numbers(given: Any) -> Numbers:
    if isinstance(given, list):
        return array("i", given)
    held = given.numpy() if isinstance(given, Tensor) else given
    return np.ascontiguousarray(held, dtype=np.int32)


@lru_cache(maxsize=64)
def _one_each(rows: int) -> tuple[array[int], array[int], array[int]]:
    """Lists of rows that see nothing of one another: that, where it begins for each, and owners."""
    return array("i", []), array("i", [0] * (rows + 1)), array("i", range(rows))


def _address(numbers: Numbers | array[float]) -> int:
    return numbers.buffer_info()[0] if isinstance(numbers, array) else numbers.ctypes.data


def _bounds(numbers: Numbers) -> tuple[int, int]:
    """The least and the largest of some numbers."""
    if isinstance(numbers, array):
        return min(numbers), max(numbers)
    return int(numbers.min()), int(numbers.max())


def _in_line(positions: Any, offsets: Any) -> Numbers:
    """Positions of lists that end with those of their rows, one after another."""
    behind = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(offsets[-1])
    return _numbers(np.repeat(positions, np.diff(offsets)) + 1 - behind)


def _falls(numbers: Numbers) -> bool:
    """True if a number is less than the one before it."""
    if isinstance(numbers, array):
        return any(map(gt, numbers, numbers[1:]))
    return bool((np.diff(numbers) < 0).any())


def _check_lists(
    rows: int,
    start: int,
    lists: Sequence[Numbers | None],
    blocks: CacheBlocks,
    causal: bool,
) -> None:
    """Refuse what would have the kernels read or write beyond a cache or a list."""
    slots, positions, reach, seen, places, offsets, owners = lists
    if slots is None or positions is None or len(positions) != rows:
        raise ValueError("a pass needs the slot and the position of each row")
    for some, least in ((slots, NOT_STORED), (seen, 0), (reach, 1)):
        if some is None or not len(some):
            continue
        lowest, highest = _bounds(some)
        if lowest < least or highest >= blocks.capacity + (some is reach):
            raise ValueError(f"slots {lowest}..{highest} of {blocks.capacity}")
    if start > blocks.capacity or (causal and start + rows > blocks.capacity):
        raise ValueError(f"{rows} rows from slot {start} of {blocks.capacity}")
    if reach is not None and len(reach) != rows:
        raise ValueError(f"{len(reach)} reaches for {rows} rows")
    if (owners is not None) != (blocks.caches > 1) or (causal and owners is not None):
        raise ValueError(f"rows of {blocks.caches} caches, and it is not said whose they are")
    if owners is not None:
        lowest, highest = _bounds(owners)
        if len(owners) != rows or lowest < 0 or highest >= blocks.caches:
            raise ValueError(f"owners {lowest}..{highest} of {blocks.caches} caches")
    if not causal:
        if seen is None or offsets is None or len(offsets) != rows + 1:
            raise ValueError("a pass that is not causal needs what each row sees")
        if offsets[0] != 0 or offsets[-1] != len(seen) or _falls(offsets):
            raise ValueError("lists of slots overlap or leave a gap")
        if places is not None and len(places) != len(seen):
            raise ValueError(f"{len(places)} positions of {len(seen)} slots")
