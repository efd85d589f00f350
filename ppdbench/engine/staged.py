"""Any half-open range of decoder layers, and logits after any of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine import attention
from ppdbench.engine.adapters import Rotary, adapter_for
from ppdbench.engine.artefacts import home
from ppdbench.engine.cache import KVCache
from ppdbench.engine.compiled import CompiledLayers
from ppdbench.engine.masks import FixedShape, Step, StepMaker
from ppdbench.engine.packing import packed_bytes
from ppdbench.errors import NumericalError

Tap = Callable[[int, Tensor], None]

TOLERANCE = 1e-3  # of the largest logit: what is compiled sums in another order


class StagedModel:
    """A causal language model cut at every layer.

    `embed` then `run(0, n_layers)` then `logits` is the whole forward pass; `run(a, b)`
    followed by `run(b, c)` equals `run(a, c)`, wherever the two halves are computed.
    """

    def __init__(self, model: Any, *, packed: bool = True, keep: range | None = None) -> None:
        """Takes `model` over: its attention is exchanged and, on a CPU, its weights packed.

        `keep` are the layers that this process runs; the weights of others are freed.
        """
        self.model = model.eval().requires_grad_(False)
        self.parameters = sum(p.numel() for p in model.parameters())  # before any is packed
        attention.install(model)
        self.adapter = adapter_for(model)
        self.n_layers = len(self.adapter.layers)
        self.hidden_size = self.adapter.hidden_size
        self.vocab_size = int(model.config.vocab_size)
        self.device = self.adapter.device
        self.dtype = self.adapter.dtype
        self.cache_shape = self.adapter.cache_shape()
        self.windows = self.adapter.windows
        if keep is not None:
            self.adapter.drop(i for i in range(self.n_layers) if i not in keep)
        if packed:
            self.adapter.pack()
        if keep is not None and 0 not in keep:
            self.adapter.drop_embedding()
        self.compiled = CompiledLayers(self.adapter)
        self._kinds = [self.adapter.rope_kind(i) for i in range(self.n_layers)]

    def new_cache(
        self,
        capacity: int,
        *,
        batch: int = 1,
        layers: range | None = None,
        spare: int = 0,
        fixed_rows: int | None = None,
    ) -> tuple[KVCache, StepMaker]:
        """A cache for sequences of up to `capacity` tokens, and the maker of its steps.

        `spare` rows hold the branches of trees that the sequence will not keep. `fixed_rows`
        gives every decoding pass that many query rows and one key length.
        """
        self.adapter.prepare(capacity)
        rows = capacity + spare
        shape = None if fixed_rows is None else FixedShape(fixed_rows, rows)
        cache = KVCache(self.cache_shape, rows + (fixed_rows or 0), batch=batch, layers=layers)
        window = self.adapter.narrowest_window
        return cache, StepMaker(cache.capacity, self.device, window, shape)

    def embed(self, tokens: Tensor, step: Step) -> Tensor:
        """Tokens [batch, query] to what layer 0 takes."""
        return self.adapter.embed(tokens, step)

    def forward(
        self, tokens: Tensor, step: Step, cache: KVCache, *, tap: Tap | None = None
    ) -> Tensor:
        """All layers over `tokens` [batch, query]; hidden states after the last."""
        return self.run(self.embed(tokens, step), 0, self.n_layers, step, cache, tap=tap)

    def run(
        self,
        hidden: Tensor,
        start: int,
        stop: int,
        step: Step,
        cache: KVCache,
        *,
        tap: Tap | None = None,
    ) -> Tensor:
        """Layers [start, stop) over `hidden` [batch, query, hidden].

        `tap` is handed the output of every layer, with the number of layers run by then.
        """
        cache.begin(step, start, stop)
        rotary = {kind: self.adapter.rotary(step, kind) for kind in set(self._kinds[start:stop])}
        quick = self.compiled.over(step, cache, rotary.get(None))
        hidden = hidden if quick is None else quick.filled(hidden)
        for i in range(start, stop):
            if quick is not None and i not in quick.left_out:
                hidden = quick(i, hidden)
            else:
                hidden = self._eager(i, hidden, step, rotary[self._kinds[i]], cache)
            if tap is not None:
                tap(i + 1, hidden if quick is None else quick.cut(hidden))
        return hidden if quick is None else quick.cut(hidden)

    def _eager(self, i: int, hidden: Tensor, step: Step, turn: Rotary, cache: KVCache) -> Tensor:
        """One layer, on whichever device it lies."""
        mask, device = step.mask(self.windows[i]), self.cache_shape.devices[i]
        if hidden.device != device:
            hidden = hidden.to(device)
            mask = None if mask is None else mask.to(device)
            turn = None if turn is None else (turn[0].to(device), turn[1].to(device))
        return self.adapter.call_layer(i, hidden, mask, turn, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head, after whichever layer `hidden` comes from."""
        logits = self.compiled.logits(hidden)
        return self.adapter.logits(hidden) if logits is None else logits

    def compile(self, counts: Collection[int]) -> None:
        """Run passes of these numbers of rows compiled from now on, and check that they may.

        On disk nothing is kept but code; what is not there yet takes tens of seconds.
        """
        self.adapter.unpack()
        self.compiled.make(counts)
        for n in self.compiled.counts:
            self._check_compiled(n)

    @torch.inference_mode()
    def _check_compiled(self, rows: int) -> None:
        """A pass compiled against the same pass eager, up to rounding."""
        hidden = torch.randn(2, 1, rows, self.hidden_size, dtype=self.dtype)
        quick = self._logits_of(hidden)
        with eager(self):
            truth = self._logits_of(hidden)
        off = float((quick - truth).abs().max() / truth.abs().max())
        if not off <= TOLERANCE:
            raise NumericalError(
                f"a compiled pass of {rows} rows is off by {off:.1e} of the largest logit; use "
                f"--compile off, or delete {home()}"
            )

    def _logits_of(self, passes: Tensor) -> Tensor:
        """Logits after the last of some passes [pass, 1, row, hidden] over an empty cache."""
        rows = passes.shape[2]
        cache, steps = self.new_cache(rows * len(passes))
        for number, hidden in enumerate(passes):
            step = steps.chain(rows * number, rows)
            out = self.run(hidden, 0, self.n_layers, step, cache)
        return self.logits(out)

    def weight_bytes(self) -> int:
        """Memory of the distinct parameters and buffers."""
        return _bytes([self.model])

    def layer_bytes(self, layer: int) -> int:
        """What a pass reads of one layer's weights."""
        return _bytes([self.adapter.layers[layer]])

    def readout_bytes(self) -> int:
        """What reading out reads of the final norm and the head."""
        return _bytes([self.adapter.readout_parts()])

    def part_bytes(self, layers: range) -> int:
        """Memory of what runs these layers and reads out after them."""
        return _bytes(self.adapter.parts(layers))


@contextmanager
def eager(model: StagedModel) -> Iterator[None]:
    """Passes of `model` run eagerly for a while."""
    compiled, model.compiled = model.compiled, CompiledLayers(model.adapter)
    try:
        yield
    finally:
        model.compiled = compiled


def _bytes(modules: Sequence[nn.Module]) -> int:
    held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    tensors = {t.data_ptr(): t for t in held if t.numel()}
    plain: int = sum(t.numel() * t.element_size() for t in tensors.values())
    return plain + sum(map(packed_bytes, modules))
