"""Passes of few rows captured as CUDA graphs: one launch in the place of hundreds.

A graph repeats the very same kernels on the very same addresses, so all that changes from pass
to pass is copied into buffers that stay: hidden states, the cache rows to write, angles and,
for trees, the mask. The number of keys is part of a graph: a pass takes the next of a few
lengths, so that a short sequence does not pay for the longest, and does not see what lies
beyond its own. A pass of fewer rows is filled up to the next count; the idle rows are written
behind all others, where nobody looks. Graphs are captured when they are first needed. How is
handed in: on a CPU, where it can be tested, the call is simply made again over the same buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from ppdbench.engine.reading import Reading
from ppdbench.engine.taps import Tap
from ppdbench.engine.weights import is_plain

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter, Rotary
    from ppdbench.engine.cache import KVCache
    from ppdbench.engine.masks import Step

FEWEST_KEYS = 256
WARM_UPS = 3  # libraries choose and allocate on the first calls, which no graph may hold

# A call over buffers that stay; capturing it gives what repeats it, and its outputs.
TensorCall = Callable[[], Sequence[Tensor]]
Capture = Callable[[TensorCall], tuple[Callable[[], object], Sequence[Tensor]]]


class CudaCapture:
    """Records the kernels of calls; what they need in between is memory that all share.

    That is safe because one graph runs at a time and its outputs are copied at once.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, call: TensorCall) -> tuple[Callable[[], object], Sequence[Tensor]]:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = call()
        self._pool = graph.pool()
        return graph.replay, outputs


class CapturedFunction:
    """A function over buffers that stay: inputs are copied in, outputs are copied out."""

    def __init__(
        self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], capture: Capture
    ) -> None:
        self._inputs = [given.clone() for given in inputs]
        self._replay, self._outputs = capture(lambda: function(*self._inputs))

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the function's outputs for these inputs, in memory that the next call spares."""
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given)
        self._replay()
        return [output.clone() for output in self._outputs]


@dataclass(frozen=True, slots=True)
class GraphKey:
    """The key of one graph. `chain`: rows follow each other, and no mask need be told."""

    layers: range
    rows: int
    keys: int
    chain: bool
    tapped: bool
    kinds: tuple[str | None, ...]


@dataclass(slots=True)
class CacheGraphs:
    """The graphs of one cache: its row numbers, and graphs that know its addresses."""

    rows: Tensor
    graphs: dict[GraphKey, CapturedFunction] = field(default_factory=dict)


class Graphs:
    """The captured passes of one model; none until `use` names numbers of rows."""

    def __init__(self, adapter: Adapter, capture: Capture | None = None) -> None:
        self.adapter = adapter
        self._counts: set[int] = set()
        self._capture = CudaCapture() if capture is None else capture
        self._caches: WeakKeyDictionary[KVCache, CacheGraphs] = WeakKeyDictionary()
        self._heads: dict[int, CapturedFunction] = {}

    def why_not(self) -> str | None:
        """Say why this model's passes cannot be captured; None if they can."""
        if not self.adapter.in_one_place:
            return "its layers are on several devices or on disk"
        if not all(is_plain(p) for layer in self.adapter.layers for p in layer.parameters()):
            return "quantised weights are multiplied by the library that made them"
        return self.adapter.why_not_repeated()

    def of(self, adapter: Adapter) -> Graphs:
        """The same, now and later, for a model in which some layers are others."""
        twin = Graphs(adapter, self._capture)
        twin._counts = self._counts
        return twin

    def use(self, counts: Collection[int]) -> None:
        """Capture passes of up to these numbers of rows from now on."""
        self._counts.update(counts)

    def run(
        self,
        hidden: Tensor,
        layers: range,
        step: Step,
        cache: KVCache,
        rotary: Mapping[str | None, Rotary],
        tap: Tap | None,
    ) -> Tensor | None:
        """Run these layers over [batch, row, hidden], where such passes are captured."""
        n = self._fitting(step.n_query)
        if n is None or step.given:
            return None
        idle = n - step.n_query
        last = cache.capacity - idle
        if step.end > last:
            return None
        held = self._of(cache)
        keys = min(_bucket(step.key_length), cache.capacity)
        turns = {kind: turn for kind, turn in rotary.items() if turn is not None}
        shape = GraphKey(layers, n, keys, step.contiguous, tap is not None, tuple(turns))
        rows = held.rows[step.start : step.end] if step.rows is None else step.rows
        inputs = [pad(hidden, (0, 0, 0, idle)), torch.cat([rows, held.rows[last:]])]
        inputs += [pad(part, (0, 0, 0, idle)) for turn in turns.values() for part in turn]
        if not step.contiguous:
            inputs += [_mask(step, w, keys, idle) for w in _windows(cache, layers)]
        if shape not in held.graphs:
            held.graphs[shape] = CapturedFunction(
                LayersFunction(self.adapter, shape, cache), inputs, self._capture
            )
        outputs = [out[:, : step.n_query] for out in held.graphs[shape](*inputs)]
        if tap is not None:
            for i, out in zip(layers, outputs, strict=True):
                tap(i + 1, out)
        return outputs[-1]

    def read(self, hidden: Tensor) -> Reading | None:
        """Final norm and head over [1, row, hidden], where that many rows are captured."""
        n = self._fitting(hidden.shape[1])
        if n is None or len(hidden) != 1:
            return None
        filled = pad(hidden, (0, 0, 0, n - hidden.shape[1]))
        if n not in self._heads:
            self._heads[n] = CapturedFunction(self._readout, [filled], self._capture)
        return Reading(*self._heads[n](filled)).first(hidden.shape[1])

    def _readout(self, hidden: Tensor) -> Sequence[Tensor]:
        found = Reading.of(self.adapter.logits(hidden))
        return found.logits, found.likeliest, found.peaks

    def _fitting(self, rows: int) -> int | None:
        return min((n for n in self._counts if n >= rows), default=None)

    def _of(self, cache: KVCache) -> CacheGraphs:
        if cache not in self._caches:
            device = cache.blocks(cache.layers[0])[0].device
            self._caches[cache] = CacheGraphs(torch.arange(cache.capacity, device=device))
        return self._caches[cache]


class CapturedRows:
    """A layer's cache while the layer is captured: rows are written where they are told."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, key_length: int) -> None:
        self.keys, self.values, self.rows, self.key_length = keys, values, rows, key_length

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows; all rows that their queries may look at."""
        self.keys.index_copy_(2, self.rows, key)
        self.values.index_copy_(2, self.rows, value)
        return self.keys[:, :, : self.key_length], self.values[:, :, : self.key_length]


class LayersFunction:
    """Some layers as a function of tensors alone; it holds the cache's memory, not the cache."""

    def __init__(self, adapter: Adapter, shape: GraphKey, cache: KVCache) -> None:
        self.adapter, self.shape = adapter, shape
        self._blocks = [cache.blocks(i) for i in shape.layers]
        self._windows = [cache.shape.windows[i] for i in shape.layers]
        self._different = _windows(cache, shape.layers)

    def __call__(self, hidden: Tensor, rows: Tensor, *rest: Tensor) -> list[Tensor]:
        """Return each layer's output if somebody looks at it, else the last one's."""
        left = iter(rest)
        turns = {kind: (next(left), next(left)) for kind in self.shape.kinds}
        masks = {
            window: self._causal(rows, window) if self.shape.chain else next(left)
            for window in self._different
        }
        outputs: list[Tensor] = []
        for i, window, (keys, values) in zip(
            self.shape.layers, self._windows, self._blocks, strict=True
        ):
            slots = CapturedRows(keys, values, rows, self.shape.keys)
            turn = turns.get(self.adapter.rope_kind(i))
            hidden = self.adapter.call_layer(i, hidden, masks[window], turn, slots)
            outputs.append(hidden)
        return outputs if self.shape.tapped else outputs[-1:]

    def _causal(self, rows: Tensor, window: int | None) -> Tensor:
        """Make the mask of rows that follow each other: [1, 1, row, key]."""
        keys = torch.arange(self.shape.keys, device=rows.device)
        seen = keys <= rows[:, None]
        if window is not None:
            seen &= rows[:, None] - keys < window
        return seen[None, None]


def _windows(cache: KVCache, layers: range) -> list[int | None]:
    """The different windows of some layers, in their order."""
    return list(dict.fromkeys(cache.shape.windows[i] for i in layers))


def _mask(step: Step, window: int | None, keys: int, idle: int) -> Tensor:
    """Make the mask, [1, 1, row, key]; idle rows see all, so that nothing is NaN."""
    mask = step.mask(window)
    assert mask is not None
    hidden = pad(mask, (0, keys - step.key_length), value=False)
    return pad(hidden, (0, 0, 0, idle), value=True)


def _bucket(keys: int) -> int:
    """The next of a few numbers of keys: a power of two."""
    return max(FEWEST_KEYS, 1 << (keys - 1).bit_length())
