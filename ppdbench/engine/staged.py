"""Any half-open range of decoder layers, and logits after any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ppdbench.engine import attention
from ppdbench.engine.adapters import adapter_for
from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import FixedShape, Step, StepMaker
from ppdbench.engine.packing import packed_bytes

Tap = Callable[[int, Tensor], None]


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
        call, devices = self.adapter.call_layer, self.cache_shape.devices
        for i in range(start, stop):
            window = self.windows[i]
            mask = step.mask(window)
            turn = rotary[self._kinds[i]]
            if hidden.device != devices[i]:
                hidden = hidden.to(devices[i])
                mask = None if mask is None else mask.to(devices[i])
                turn = None if turn is None else (turn[0].to(devices[i]), turn[1].to(devices[i]))
            hidden = call(i, hidden, mask, turn, cache)
            if tap is not None:
                tap(i + 1, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head, after whichever layer `hidden` comes from."""
        return self.adapter.logits(hidden)

    def weight_bytes(self) -> int:
        """Memory of the distinct parameters and buffers."""
        return _bytes([self.model])

    def part_bytes(self, layers: range) -> int:
        """Memory of what runs these layers and reads out after them."""
        return _bytes(self.adapter.parts(layers))


def _bytes(modules: Sequence[nn.Module]) -> int:
    held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    tensors = {t.data_ptr(): t for t in held if t.numel()}
    plain: int = sum(t.numel() * t.element_size() for t in tensors.values())
    return plain + sum(map(packed_bytes, modules))
