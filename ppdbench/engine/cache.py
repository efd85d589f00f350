"""The KV cache: rows preallocated once per run, written in place, moved on acceptance.

It is what attention modules call as `past_key_values.update(key, value, layer)`. Which
rows are meant is in the step that `StagedModel.run` announces beforehand, so the tensors
need no bookkeeping inside the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ppdbench.engine.masks import Step
from ppdbench.errors import UnsupportedModel
from ppdbench.machine.pages import zeros


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes that a cache must have for one model."""

    n_layers: int
    n_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    devices: tuple[torch.device, ...]  # one per layer
    dtype: torch.dtype
    value_dim: int | None = None
    """The width of values, where it is not that of keys; the wider of the two is `head_dim`."""
    key_dim: int | None = None
    rowless: frozenset[int] = frozenset()
    """Layers that hold no keys and values: they do not attend, or look at those of another."""
    remembering: frozenset[int] = frozenset()
    """Layers with a memory of their own, which keep their inputs, `hidden` wide."""
    hidden: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    """Heads and width of the rows of each layer, where layers differ in them."""
    sources: tuple[int, ...] = ()
    """The layer whose rows each layer looks at, where some look at those of another."""

    def size_of(self, layer: int) -> tuple[int, int]:
        """Heads and width of the rows that a layer holds."""
        return self.sizes[layer] if self.sizes else (self.n_heads, self.head_dim)

    def source_of(self, layer: int) -> int:
        """The layer whose rows `layer` looks at."""
        return self.sources[layer] if self.sources else layer

    @property
    def looked_at(self) -> frozenset[int]:
        """Layers whose rows others look at, too."""
        return frozenset(source for i, source in enumerate(self.sources) if source != i)

    def bytes(self, capacity: int) -> int:
        """Memory that `capacity` rows take over all layers."""
        holding = (i for i in range(self.n_layers) if i not in self.rowless)
        held = sum(map(self._numbers, holding))
        row = (held + len(self.remembering) * self.hidden) * self.dtype.itemsize
        return row * capacity

    def seen_bytes(self, layers: range, length: int) -> int:
        """Bytes of keys and values that a pass over `layers` looks at among `length` rows."""
        attending = (i for i in layers if self.source_of(i) not in self.rowless)
        seen = (
            min(length, self.windows[i] or length) * self._numbers(self.source_of(i))
            for i in attending
        )
        return sum(seen) * self.dtype.itemsize

    def _numbers(self, layer: int) -> int:
        """Numbers that one row of a layer holds."""
        heads, width = self.size_of(layer)
        return 2 * heads * width


class Rows(Protocol):
    """The rows that attention modules hand new keys and values to, and get those to look at."""

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Take the new rows of `layer`; all rows that its queries may look at."""
        ...


@runtime_checkable
class HeldRows(Rows, Protocol):
    """Rows that stay where they are from pass to pass, so that other layers may look at them."""

    def look(self, layer: int) -> tuple[Tensor, Tensor]:
        """All rows that the queries of `layer` may look at, where another layer holds them."""
        ...


class SharedRows:
    """Rows of another layer as `layer` asks for them: by a kind of layers, which is its own."""

    def __init__(self, cache: HeldRows, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def __getitem__(self, kind: str) -> tuple[Tensor, Tensor]:
        return self.cache.look(self.layer)

    def __setitem__(self, kind: str, rows: tuple[Tensor, Tensor]) -> None:
        """Nothing: the cache has what a layer puts here already."""


class Lengths:
    """Numbers of rows that some layers hold: most often all of them equally many.

    Kept as runs of neighbours that hold equally many, so that what is said of all layers takes no
    longer for many of them.
    """

    __slots__ = ("_runs", "layers")

    def __init__(self, layers: range) -> None:
        self.layers = layers
        self._runs = [(layers.start, layers.stop, 0)]  # one behind another: first, stop, rows

    def by_layer(self) -> dict[int, int]:
        """The rows of each layer."""
        return {i: rows for first, stop, rows in self._runs for i in range(first, stop)}

    def of(self, layer: int) -> int:
        """The rows of one layer."""
        [(_, _, rows)] = self._within(layer, layer + 1)
        return rows

    @property
    def least(self) -> int:
        """The rows that every layer holds."""
        return min([rows for _, _, rows in self._runs])

    def shorter(self, rows: int, first: int, stop: int) -> tuple[int, int] | None:
        """The first of the layers [first, stop) that holds fewer, and how many it holds."""
        for begin, _, held in self._within(first, stop):
            if held < rows:
                return begin, held
        return None

    def put(self, rows: int, first: int, stop: int) -> None:
        """Let the layers [first, stop) hold so many."""
        self._change(first, stop, [(first, stop, rows)])

    def cap(self, rows: int, first: int, stop: int) -> None:
        """Let the layers [first, stop) hold so many at most."""
        within = self._within(first, stop)
        self._change(first, stop, [(i, j, min(rows, held)) for i, j, held in within])

    def _within(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """The runs of the layers [first, stop), cut at both ends."""
        own = self.layers
        if first == own.start and stop == own.stop:
            return self._runs
        if not own.start <= first <= stop <= own.stop:
            raise KeyError(f"layers [{first}, {stop}) in a cache for {own}")
        cut = [(max(i, first), min(j, stop), rows) for i, j, rows in self._runs]
        return [run for run in cut if run[0] < run[1]]

    def _change(self, first: int, stop: int, runs: list[tuple[int, int, int]]) -> None:
        """Put runs of the layers [first, stop) in the place of theirs."""
        own = self.layers
        if first == own.start and stop == own.stop:
            self._runs = runs
        elif first < stop:
            before, behind = self._within(own.start, first), self._within(stop, own.stop)
            self._runs = [*before, *runs, *behind]


class KVCache:
    """Keys and values of the layers in `layers`: [1, heads, capacity, head_dim] each.

    Layers may stand at different lengths (self-speculation drafts with the lower ones
    only). A pass may start at or before a layer's length, which drops what lay behind;
    it may never leave a gap.
    """

    def __init__(
        self,
        shape: CacheShape,
        capacity: int,
        *,
        layers: range | None = None,
    ) -> None:
        self.shape = shape
        self.capacity = capacity
        self.layers = range(shape.n_layers) if layers is None else layers
        # The same for caches of as many rows of the same layers.
        self.room = capacity, self.layers.start, self.layers.stop
        self._lengths = Lengths(self.layers)
        self._step: Step | None = None
        # One block for neighbours on one device, so that rows of all move at once.
        self._blocks: list[tuple[range, Tensor]] = []
        groups = groupby(
            self.layers, lambda i: (shape.devices[i], i in shape.rowless, shape.size_of(i))
        )
        for (device, rowless, (heads, width)), group in groups:
            if rowless:
                continue
            some = list(group)
            # Zeros, not empty: rows that are masked out still enter products, and 0 * NaN is NaN.
            block = zeros((len(some), 2, 1, heads, capacity, width), shape.dtype, device)
            self._blocks.append((range(some[0], some[-1] + 1), block))
        parts = {i: block[i - some[0]] for some, block in self._blocks for i in some}
        self._keys = {i: part[0] for i, part in parts.items()}
        self._values = {i: part[1] for i, part in parts.items()}

    def begin(self, step: Step, start_layer: int, stop_layer: int) -> None:
        """Announce the rows that the layers [start_layer, stop_layer) are about to write."""
        end = step.end
        if end > self.capacity or step.key_length > self.capacity:
            raise ValueError(f"pass ends at row {end}, the cache holds {self.capacity}")
        if (short := self._lengths.shorter(step.start, start_layer, stop_layer)) is not None:
            layer, length = short
            raise ValueError(
                f"layer {layer} holds {length} rows; a pass from row {step.start} would leave a gap"
            )
        self._lengths.put(end, start_layer, stop_layer)
        self._step = step

    def hold(self, length: int, start_layer: int, stop_layer: int) -> None:
        """Say that the layers [start_layer, stop_layer) hold `length` rows."""
        self._lengths.put(length, start_layer, stop_layer)

    @property
    def lengths(self) -> dict[int, int]:
        """The number of rows that each layer holds."""
        return self._lengths.by_layer()

    @property
    def shortest(self) -> int:
        """The number of rows that every layer holds."""
        return self._lengths.least

    def length(self, layer: int) -> int:
        """The number of rows that a layer holds."""
        return self._lengths.of(layer)

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows of `layer` and return all rows its queries may look at."""
        step = self._step
        assert step is not None, "begin() was not called"
        keys, values = self._places(layer)
        for given in step.given:
            key, value = given.over(key, value, layer)
        if step.rows is not None:
            keys.index_copy_(2, step.rows, key)
            values.index_copy_(2, step.rows, value)
        else:
            keys[:, :, step.start : step.end] = key
            values[:, :, step.start : step.end] = value
        return self._seen(step, layer, keys, values)

    def look(self, layer: int) -> tuple[Tensor, Tensor]:
        """All rows that the queries of `layer` may look at, where another layer holds them."""
        assert self._step is not None, "begin() was not called"
        source = self.shape.source_of(layer)
        if source not in self._keys:
            raise UnsupportedModel(
                f"layer {layer} looks at the keys and values of layer {source}, which is "
                "not run here: this model cannot be cut between them"
            )
        device = self.shape.devices[layer]
        keys, values = self._seen(self._step, layer, *self._places(source))
        return keys.to(device), values.to(device)

    def _places(self, layer: int) -> tuple[Tensor, Tensor]:
        """The places where keys and values of a layer are written."""
        keys, values = self._keys[layer], self._values[layer]
        if self.shape.key_dim is not None:
            keys = keys[..., : self.shape.key_dim]
        if self.shape.value_dim is not None:
            values = values[..., : self.shape.value_dim]
        return keys, values

    def _seen(self, step: Step, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        first = self._first_row(step, layer)
        return keys[:, :, first : step.key_length], values[:, :, first : step.key_length]

    def put(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Write rows from `first` on in all layers: [layers, heads, rows, head_dim] each."""
        rows = slice(first, first + keys.shape[2])
        for some, block in self._blocks:
            own = slice(some.start, some.stop)
            block[:, 0, 0, :, rows] = keys[own]
            block[:, 1, 0, :, rows] = values[own]

    def taken(self, row: int) -> list[Tensor]:
        """Copy the keys and values of a row in all layers, as `put_back` takes them."""
        return [block[..., row, :].clone() for _, block in self._blocks]

    def put_back(self, row: int, taken: Sequence[Tensor]) -> None:
        """Write keys and values of a row that were taken, here or from a cache of this shape."""
        for (_, block), given in zip(self._blocks, taken, strict=True):
            block[..., row, :] = given

    def get_seq_length(self, layer: int | None = None) -> int | Tensor:
        """Count the rows with those of this pass, for layers that ask.

        One that names itself adds to it the numbers of its rows in the pass, for their positions.
        """
        if self._step is None:
            return 0
        return self._step.key_length if layer is None else self._step.ahead

    def _first_row(self, step: Step, layer: int) -> int:
        """Single queries without a mask honour a sliding window by not reading older rows."""
        window = self.shape.windows[layer]
        if window is None or step.visible is not None or step.n_query > 1:
            return 0
        return max(0, step.key_length - window)

    def blocks(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return all rows of `layer`, held or not: [1, heads, capacity, head_dim] each."""
        return self._keys[layer], self._values[layer]

    def wipe(self) -> None:
        """Zeros again, after a pass that wrote NaN: masked rows still enter products."""
        for _, block in self._blocks:
            block.zero_()

    def truncate(self, length: int) -> None:
        """Forget every row from `length` on, in every layer."""
        self._lengths.cap(length, self.layers.start, self.layers.stop)

    def keep(self, base: int, rows: Sequence[int], layers: range | None = None) -> None:
        """Keep, of the rows from `base` on, only base+rows[0], base+rows[1], ..., in that order.

        In the given layers, where others do not hold the same rows.
        """
        layers = self.layers if layers is None else layers
        if any(later <= row for row, later in pairwise((-1, *rows))):
            raise ValueError(f"rows to keep must rise from 0 or more, not {list(rows)}")
        first, last = layers.start, layers.stop
        if rows and (short := self._lengths.shorter(base + rows[-1] + 1, first, last)) is not None:
            layer, length = short
            raise ValueError(f"layer {layer} holds {length} rows, not all of them")
        for place, row in enumerate(rows):
            if place < row:  # one by one: most often it is one, and none is overwritten unread
                self._move(base + row, base + place, layers)
        self._lengths.cap(base + len(rows), first, last)

    def _move(self, source: int, target: int, layers: range) -> None:
        for some, block in self._blocks:
            if layers != some:
                block = block[max(0, layers.start - some.start) : max(0, layers.stop - some.start)]
            block[..., target, :] = block[..., source, :]

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values that `layer` holds: [1, heads, length, head_dim]."""
        length = self.length(layer)
        return self._keys[layer][:, :, :length], self._values[layer][:, :, :length]

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it holds."""
        return sum(block.numel() * block.element_size() for _, block in self._blocks)
