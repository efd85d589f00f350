"""Layers compiled ahead of time for passes of a few row counts, over the cache as it is.

One artefact per row count runs any single layer, its weights and cache rows among the inputs,
so that any range of layers, from any strategy, is a loop over it. The number of keys stays
open: a short sequence never pays for a long one. A pass of fewer rows is filled up to the next
count; the idle rows are written behind all others, where nobody looks. Whatever does not fit
runs eagerly.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from ppdbench.engine import artefacts
from ppdbench.engine.families import compiled_families
from ppdbench.engine.few_rows import Float32Rows, for_few_rows
from ppdbench.engine.packing import PackedLinear
from ppdbench.engine.reading import Reading
from ppdbench.engine.weights import is_plain

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter, Rotary
    from ppdbench.engine.cache import KVCache
    from ppdbench.engine.masks import Step

DTYPES = (torch.float32, torch.bfloat16)
# Up to here sums keep up with the matrix kernels; wider passes are left to those.
MOST_ROWS = 16
# Settings that no layer reads; weights of one shape share what is compiled whatever these say.
ELSEWHERE = {
    *("num_hidden_layers", "vocab_size", "max_position_embeddings", "layer_types", "dtype"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "architectures"),
    *("_name_or_path", "rope_parameters", "initializer_range", "use_cache", "max_window_layers"),
    *("sliding_window", "use_sliding_window", "attention_dropout", "pretraining_tp"),
}


class TracedLayer(nn.Module):
    """One layer as a function of its weights and its cache rows, too."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.layer = for_few_rows(adapter.layers[0])
        self.adapter = adapter
        self.names = sorted(name for name, _ in self.layer.named_parameters())

    def forward(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        rows: Tensor,
        keys: Tensor,
        values: Tensor,
        weights: list[Tensor],
    ) -> Tensor:
        """Hidden states [1, row, hidden] after the layer."""
        cache = Float32Rows(keys, values, rows, mask.shape[-1])
        arguments = self.adapter.arguments(mask, (cos, sin), cache)
        held = dict(zip(self.names, weights, strict=True))
        out: Tensor = functional_call(self.layer, held, (hidden,), arguments)
        return out


class TracedHead(nn.Module):
    """Final norm and head as a function of their weights."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.parts = for_few_rows(adapter.readout_parts())
        self.names = sorted(name for name, _ in self.parts.named_parameters())
        self.cap = adapter.cap

    def forward(self, hidden: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
        """Logits [1, row, vocab]; the likeliest token of each row and its logit, [1, row].

        Logits alone where they are rounded: the compiler would compare them as they were before,
        and of tokens that are equally likely afterwards take another than eager passes do.
        """
        held = dict(zip(self.names, weights, strict=True))
        logits = self.cap(functional_call(self.parts, held, (hidden,)))
        if logits.dtype != torch.float32:
            return (logits,)
        return logits, logits.argmax(-1), logits.amax(-1)


@dataclass(frozen=True, slots=True)
class Runners:
    """The compiled passes for one number of threads, by row count."""

    layers: dict[int, artefacts.Runner] = field(default_factory=dict)
    heads: dict[int, artefacts.Runner] = field(default_factory=dict)

    def fitting(self, rows: int) -> int | None:
        """The smallest compiled count that holds so many rows."""
        return min((n for n in self.layers if n >= rows), default=None)


NOTHING = Runners()


class CompiledLayers:
    """The compiled row counts of one model; none until `make` is called.

    They are made for as many threads as torch has then, and serve passes with that many alone.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.left_out: frozenset[int] = frozenset()
        self._made: dict[int, Runners] = {}
        self._weights: list[list[Tensor]] = []
        self._head_weights: list[Tensor] = []
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def without(self, layers: Collection[int]) -> CompiledLayers:
        """The same, now and later, for a model in which these layers are others."""
        view = copy.copy(self)
        view.left_out = frozenset(layers)
        return view

    @property
    def counts(self) -> tuple[int, ...]:
        """The row counts that are compiled for the threads that torch has."""
        return self.counts_for(torch.get_num_threads())

    def counts_for(self, threads: int) -> tuple[int, ...]:
        """List the row counts that are compiled for so many threads."""
        return tuple(sorted(self._made.get(threads, NOTHING).layers))

    @property
    def _here(self) -> Runners:
        return self._made.get(torch.get_num_threads(), NOTHING)

    def why_not(self) -> str | None:
        """Say why this model cannot be compiled; None if it can."""
        adapter = self.adapter
        if adapter.device.type != "cpu":
            return "compiled passes are for the CPU"
        if not adapter.in_one_place:
            return "its layers are on several devices or on disk"
        if adapter.family.compiled is False:
            return f"not for {adapter.family.name}, but for {', '.join(compiled_families())}"
        if adapter.family.compiled is None and (why := adapter.why_not_traced()) is not None:
            return why
        if not all(is_plain(p) for layer in adapter.layers for p in layer.parameters()):
            return "quantised weights are multiplied by the library that made them"
        if adapter.dtype not in DTYPES:
            name, *others = (str(t).removeprefix("torch.") for t in (adapter.dtype, *DTYPES))
            return f"not for {name}, but for {' and '.join(others)}"
        if len({tuple(_shapes(layer)) for layer in adapter.layers}) != 1:
            return "the layers differ in shape"
        return None

    def missing(self, counts: Collection[int]) -> list[int]:
        """List those of these row counts that nothing is on disk for."""
        return [
            n
            for n in sorted(counts)
            if not all(artefacts.path_of(what).is_file() for what in self._names(n))
        ]

    def make(self, counts: Collection[int]) -> None:
        """Compile these row counts, or load what was compiled before; weights must be plain."""
        adapter = self.adapter
        here = self._made.setdefault(torch.get_num_threads(), Runners())
        for n in sorted(set(counts) - set(here.layers)):
            layer, head = self._names(n)
            here.layers[n] = artefacts.runner(layer, partial(trace_layer, adapter, n))
            here.heads[n] = artefacts.runner(head, partial(trace_head, adapter, n))
        self._weights[:] = [_weights(layer) for layer in adapter.layers]
        self._head_weights[:] = _weights(adapter.readout_parts())

    def _names(self, n: int) -> tuple[str, str]:
        """Name the artefacts of a row count after all that is traced, without the values."""
        import transformers

        config = self.adapter.config
        settings = {k: v for k, v in config.to_dict().items() if k not in ELSEWHERE}
        said = json.dumps(settings, sort_keys=True, default=str)
        about = f"{transformers.__version__} {self.adapter.dtype} {said}"
        shapes = _shapes(self.adapter.layers[0]), _shapes(self.adapter.readout_parts())
        layer, head = (f"{n} rows {shape} {about}" for shape in shapes)
        return f"layer {layer}", f"head {head}"

    # Passes

    def over(
        self, step: Step, cache: KVCache, rotary: Mapping[str | None, Rotary]
    ) -> CompiledPass | None:
        """The pass of this step, if it is one that was compiled."""
        here = self._here
        n = here.fitting(step.n_query)
        if n is None or step.given or step.key_length < 2:
            return None  # of sizes 0 and 1 tracing makes constants
        idle = n - step.n_query
        last = cache.capacity - idle
        if (step.visible is None and step.n_query > 1) or step.start + step.n_query > last:
            return None
        if idle and self.left_out:
            return None
        slots, seen = self._table(cache.capacity)
        rows = slots[step.start : step.start + step.n_query] if step.rows is None else step.rows
        turns = {kind: turn for kind, turn in rotary.items() if turn is not None}
        if idle:
            rows = torch.cat([rows, slots[last:]])
            for kind, (cos, sin) in turns.items():
                turns[kind] = pad(cos, (0, 0, 0, idle)), pad(sin, (0, 0, 0, idle))
        return CompiledPass(self, here.layers[n], idle, step, cache, turns, (rows, seen))

    def read(self, hidden: Tensor) -> Reading | None:
        """Final norm and head over [1, row, hidden], where that many rows are compiled."""
        here = self._here
        n = here.fitting(hidden.shape[1])
        if n is None or len(hidden) != 1:
            return None
        idle = n - hidden.shape[1]
        filled = pad(hidden, (0, 0, 0, idle)) if idle else hidden
        logits, *found = here.heads[n]([filled.contiguous(), *self._head_weights])
        reading = Reading(logits, *found) if found else Reading.of(logits)
        return reading.first(n - idle)

    def _table(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Row numbers [capacity], and a mask [1, 1, 1, capacity] that hides nothing."""
        if capacity not in self._tables:
            seen = torch.ones(1, 1, 1, capacity, dtype=torch.bool)
            self._tables[capacity] = (torch.arange(capacity), seen)
        return self._tables[capacity]


class CompiledPass:
    """One pass: what all of its layers take is made once."""

    def __init__(
        self,
        compiled: CompiledLayers,
        run: artefacts.Runner,
        idle: int,
        step: Step,
        cache: KVCache,
        turns: Mapping[str | None, tuple[Tensor, ...]],
        tables: tuple[Tensor, Tensor],
    ) -> None:
        self.left_out, self.idle, self.cache = compiled.left_out, idle, cache
        self._run, self._weights = run, compiled._weights
        self._turns, self._kind = turns, compiled.adapter.rope_kind
        self._rows, self._seen = tables
        self._step = step
        self._masks: dict[int | None, Tensor] = {}

    def filled(self, hidden: Tensor) -> Tensor:
        """Hidden states with idle rows behind them."""
        return pad(hidden, (0, 0, 0, self.idle)) if self.idle else hidden.contiguous()

    def cut(self, hidden: Tensor) -> Tensor:
        """Hidden states without the idle rows."""
        return hidden[:, : -self.idle] if self.idle else hidden

    def __call__(self, layer: int, hidden: Tensor) -> Tensor:
        """One layer over filled hidden states."""
        keys, values = self.cache.blocks(layer)
        mask = self._mask(self.cache.shape.windows[layer])
        shared = [hidden, *self._turns[self._kind(layer)], mask, self._rows, keys, values]
        return self._run(shared + self._weights[layer])[0]

    def _mask(self, window: int | None) -> Tensor:
        if window not in self._masks:
            self._masks[window] = self._made(window)
        return self._masks[window]

    def _made(self, window: int | None) -> Tensor:
        """Make the mask, [1, 1, row, key]; idle rows see everything, so that nothing is NaN."""
        step = self._step
        mask = step.mask(window)
        if mask is None:
            mask = self._seen[..., : step.key_length]
            if window is not None and step.key_length > window:
                mask = mask.clone()
                mask[..., : step.key_length - window] = False
        return pad(mask, (0, 0, 0, self.idle), value=True) if self.idle else mask.contiguous()


def trace_layer(adapter: Adapter, n: int) -> artefacts.Traced:
    """A layer over `n` rows; how many keys there are and how many fit stays open."""
    keys, capacity = torch.export.Dim("keys", min=2), torch.export.Dim("capacity", min=2)
    shape = adapter.cache_shape()
    module = TracedLayer(adapter)
    weights = _weights(module.layer)
    # Each a tensor of its own: one that came twice would be traced as a single input.
    cos, sin = torch.zeros(2, 1, n, adapter.rotary_width(), dtype=shape.dtype).unbind()
    block = torch.zeros(1, shape.n_heads, 3 * n + 8, shape.head_dim, dtype=shape.dtype)
    mask = torch.ones(1, 1, n, 2 * n + 5, dtype=torch.bool)
    hidden = torch.zeros(1, n, adapter.hidden_size, dtype=shape.dtype)
    inputs = (
        hidden,
        cos.clone(),
        sin.clone(),
        mask,
        torch.arange(n),
        block,
        block.clone(),
        weights,
    )
    rows, fixed = {2: capacity}, [None] * len(weights)
    return module, inputs, (None, None, None, {3: keys}, None, rows, rows, fixed)


def trace_head(adapter: Adapter, n: int) -> artefacts.Traced:
    """Final norm and head over `n` rows."""
    module = TracedHead(adapter)
    weights = _weights(module.parts)
    hidden = torch.zeros(1, n, adapter.hidden_size, dtype=adapter.dtype)
    return module, (hidden, weights), (None, [None] * len(weights))


def _weights(module: nn.Module) -> list[Tensor]:
    """The weights in the order of their names, whatever order they were registered in."""
    return [p.data.contiguous() for _, p in sorted(module.named_parameters())]


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes of all weights by name, packed or not."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    for name, part in module.named_modules():
        if isinstance(part, PackedLinear):
            shapes[f"{name}.weight"] = (part.out_features, part.in_features)
    return sorted(shapes.items())
