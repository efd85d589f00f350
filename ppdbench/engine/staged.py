"""Any half-open range of decoder layers, and logits after any of them."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ppdbench.engine import attention, memory
from ppdbench.engine.adapters import Adapter, Rotary
from ppdbench.engine.cache import KVCache
from ppdbench.engine.flat.choice import EAGER, lay_out
from ppdbench.engine.flat.latent import copied_bytes
from ppdbench.engine.flat.native import loaded
from ppdbench.engine.flat.parts import FlatParts
from ppdbench.engine.flat.passes import FlatPasses
from ppdbench.engine.graphs import Graphs
from ppdbench.engine.joined import JoinedCache
from ppdbench.engine.masks import FixedShape, Step, StepMaker, numbers
from ppdbench.engine.offload import NOTHING, StoredWeights
from ppdbench.engine.packing import packed_bytes
from ppdbench.engine.pass_check import PassPlan, PassRun, PassTruth
from ppdbench.engine.reading import Reading
from ppdbench.engine.taps import Tap
from ppdbench.engine.weights import count, kind_of, parts
from ppdbench.engine.wider import WIDER, wide_adapter
from ppdbench.machine.threads import threads


class Meeting(Protocol):
    """The place where sequences that are decoded together wait for one another's passes."""

    def takes_part(self) -> bool:
        """True if who asks is one of them."""
        ...

    def run(
        self,
        model: StagedModel,
        hidden: Tensor,
        layers: range,
        step: Step,
        cache: KVCache,
        tap: Tap | None,
    ) -> Tensor:
        """Run layers over the rows of one sequence, beside those of others."""
        ...

    def read(self, model: StagedModel, hidden: Tensor) -> Reading:
        """Read out rows of one sequence, beside those of others."""
        ...

    def run_and_read(
        self,
        model: StagedModel,
        tokens: Sequence[int],
        step: Step,
        cache: KVCache,
        tap: Tap | None,
    ) -> tuple[Tensor, Reading]:
        """Run all layers over tokens of one sequence and read out each row, beside others."""
        ...


WORDS = 256  # drawn from the vocabulary for checks of a model without a tokenizer


class StagedModel:
    """A causal language model cut at every layer.

    `embed` then `run(0, n_layers)` then `logits` is the whole forward pass; `run(a, b)`
    followed by `run(b, c)` equals `run(a, c)`, wherever the two halves are computed.

    Layers may stand on several devices. Everything that goes into a model or comes out of it,
    what taps are handed included, is on `device`, where its tokens are embedded. At a `meeting`
    passes that several sequences ask for run as one.
    """

    meeting: Meeting | None = None

    def __init__(
        self,
        model: Any,
        *,
        packed: bool = True,
        keep: range | None = None,
        stored: StoredWeights = NOTHING,
        text: Sequence[int] = (),
        passes: str = EAGER,
    ) -> None:
        """Takes `model` over: its attention is exchanged and, on a CPU, its weights packed.

        `keep` are the layers that this process runs; the weights of others are freed. What is
        `stored` is read from disk by whatever needs it. `text` are tokens of a text, over which
        fast passes are checked. `passes` are `eager`, `flat` where they can be, or whichever is
        `faster`.
        """
        self.model = model.eval().requires_grad_(False)
        self.parameters = sum(map(count, model.parameters()))  # before any is packed
        self.quantized = kind_of(model)
        attention.install(model)
        self.adapter = Adapter(model, stored)
        memory.install(self.adapter.layers, self.adapter.anatomy.memories)
        self.n_layers = len(self.adapter.layers)
        self.hidden_size = self.adapter.hidden_size
        self.width = self.adapter.width
        self.vocab_size = int(model.config.vocab_size)
        self.text = tuple(i for i in text if i < self.vocab_size) or _words(self.vocab_size)
        self.device = self.adapter.device
        self.dtype = self.adapter.dtype
        self.cache_shape = self.adapter.cache_shape
        self.windows = self.adapter.windows
        if keep is not None:
            self.adapter.drop(i for i in range(self.n_layers) if i not in keep)
        found, self.path = lay_out(self.adapter, self.text, passes if packed else EAGER)
        self.flat = found if isinstance(found, FlatPasses) else None
        self.parts = found if isinstance(found, FlatParts) else None
        if packed and self.flat is None:
            self.adapter.pack()
        if keep is not None and 0 not in keep:
            self.adapter.drop_embedding()
        if packed:
            self.adapter.enlarge()
        self.graphs = Graphs(self.adapter)
        self._kinds = [self.adapter.rope_kind(i) for i in range(self.n_layers)]
        self._groups = self.adapter.heads_per_kv
        self._ends = _ends(self.cache_shape.devices)

    def new_cache(
        self,
        capacity: int,
        *,
        layers: range | None = None,
        spare: int = 0,
        fixed_rows: int | None = None,
    ) -> tuple[KVCache, StepMaker]:
        """A cache for a sequence of up to `capacity` tokens, and the maker of its steps.

        `spare` rows hold the branches of trees that the sequence will not keep. `fixed_rows`
        gives every decoding pass that many query rows and one key length.
        """
        self.adapter.prepare(capacity)
        rows = capacity + spare
        shape = None if fixed_rows is None else FixedShape(fixed_rows, rows)
        kind = memory.RememberingCache if self.cache_shape.remembering else KVCache
        cache = kind(self.cache_shape, rows + (fixed_rows or 0), layers=layers)
        window = self.adapter.narrowest_window
        return cache, StepMaker(cache.capacity, self.device, window, shape)

    def embed(self, tokens: Tensor, step: Step) -> Tensor:
        """Tokens [batch, query] to what layer 0 takes."""
        return self.adapter.embed(tokens, step)

    def forward(
        self, tokens: Tensor, step: Step, cache: KVCache, *, tap: Tap | None = None
    ) -> Tensor:
        """Run all layers over `tokens` [batch, query]; return hidden states after the last."""
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
        """Layers [start, stop) over `hidden` [batch, query, width].

        `tap` is handed the output of every layer, with the number of layers run by then.
        """
        if self.meeting is not None and self.meeting.takes_part():
            return self.meeting.run(self, hidden, range(start, stop), step, cache, tap)
        return self.pass_over(hidden, start, stop, step, cache, tap)

    def pass_over(
        self,
        hidden: Tensor,
        start: int,
        stop: int,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None = None,
    ) -> Tensor:
        """The same at once, for one sequence or several that are joined."""
        while start < stop:
            end, device = min(stop, self._ends[start]), self.cache_shape.devices[start]
            there = self._homeward(tap, device)
            hidden = self._stretch(hidden.to(device), start, end, step.on(device), cache, there)
            start = end
        return hidden.to(self.device)

    def _homeward(self, tap: Tap | None, device: torch.device) -> Tap | None:
        """The tap for layers on `device`."""
        if tap is None or device == self.device:
            return tap
        return lambda layer, hidden: tap(layer, hidden.to(self.device))

    @property
    def readers(self) -> list[Callable[[Tensor], object]]:
        """Ways to read memory as passes of this model do, where that is not through torch."""
        return [] if self.flat is None else [loaded().sum]

    def _stretch(
        self,
        hidden: Tensor,
        start: int,
        stop: int,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None,
    ) -> Tensor:
        """Layers [start, stop), which share a device with all that is handed over."""
        cache.begin(step, start, stop)
        if self.flat is not None:
            found = self.flat.layers.run(hidden, range(start, stop), step, cache, tap)
            if found is not None:
                return found
        with threads.returned():
            rotary = {k: self.adapter.rotary(step, k) for k in set(self._kinds[start:stop])}
            if isinstance(cache, KVCache):
                done = self.graphs.run(hidden, range(start, stop), step, cache, rotary, tap)
                if done is not None:
                    return done
            for i in range(start, stop):
                found = None if self.parts is None else self.parts.run(i, hidden, step, cache)
                hidden = self._eagerly(i, hidden, step, cache, rotary) if found is None else found
                if tap is not None:
                    tap(i + 1, hidden)
        return hidden

    def _eagerly(
        self,
        layer: int,
        hidden: Tensor,
        step: Step,
        cache: KVCache | JoinedCache,
        rotary: Mapping[str | None, Rotary],
    ) -> Tensor:
        # What tokens carry may be of a wider type than what layers compute with.
        dtype = hidden.dtype if self.adapter.carried is None else self.dtype
        mask = step.added(self.windows[layer], self._groups[layer], dtype)
        turn = rotary[self._kinds[layer]]
        return self.adapter.call_layer(layer, hidden, mask, turn, cache, step)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head, after whichever layer `hidden` comes from."""
        if self.meeting is not None and self.meeting.takes_part():
            return self.meeting.read(self, hidden).logits
        found = self._narrow(hidden)
        return self._eager_logits(hidden) if found is None else found.logits

    def read(self, hidden: Tensor) -> Reading:
        """Logits after whichever layer, and the likeliest token of each row."""
        if self.meeting is not None and self.meeting.takes_part():
            return self.meeting.read(self, hidden)
        return self.read_out(hidden)

    def run_and_read(
        self, tokens: Sequence[int], step: Step, cache: KVCache, *, tap: Tap | None = None
    ) -> tuple[Tensor, Reading]:
        """Run all layers over `tokens` behind a prompt, and read out each row."""
        if self.meeting is not None and self.meeting.takes_part():
            return self.meeting.run_and_read(self, tokens, step, cache, tap)
        entering = self.entering(numbers(tokens, self.device), step)
        [found] = self.pass_and_read(entering, step, cache, tap, [len(tokens)])
        return found

    def run_to_exit(
        self, ids: Tensor, last: int, step: Step, cache: KVCache
    ) -> tuple[Tensor, Reading]:
        """Run the layers before `last` over `ids` [1, query] behind a prompt, and read out."""
        if self.meeting is not None and self.meeting.takes_part():
            hidden = self.run(self.embed(ids, step), 0, last, step, cache)
            return hidden, self.read(hidden)
        entering = self.entering(ids, step)
        [found] = self.pass_and_read(entering, step, cache, None, [ids.shape[1]], last)
        return found

    def entering(self, ids: Tensor, step: Step) -> Tensor:
        """Tokens [1, query] as whole passes take them: as they are where kernels look words up."""
        looked_up = self.flat is not None and self.flat.looks_up
        return ids if looked_up else self.embed(ids, step)

    def pass_and_read(
        self,
        entering: Tensor,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None,
        counts: Sequence[int],
        last: int | None = None,
    ) -> list[tuple[Tensor, Reading]]:
        """All layers at once, and what is read out of each row: cut into so many rows each.

        Of one sequence or several that are joined; behind a prompt, and none of its rows idle.
        `last` is the layer that is not run any more, if not all are.
        """
        last = self.n_layers if last is None else last
        if self.flat is not None:
            self._begin(step, cache, last)
            found = self.flat.run_and_read(entering, step, cache, tap, counts, last)
            if found is not None:
                return found
        are_tokens = not entering.is_floating_point()
        hidden = self.adapter.embed(entering, step) if are_tokens else entering
        states = self.pass_over(hidden, 0, last, step, cache, tap)
        cut = torch.split(states, [*counts], dim=1)
        return [*zip(cut, self.read_out(states).parts(counts), strict=True)]

    def _begin(self, step: Step, cache: KVCache | JoinedCache, last: int) -> None:
        """Announce to a cache the rows that the layers before `last` are about to write."""
        cache.begin(step, 0, last)

    def read_out(self, hidden: Tensor) -> Reading:
        """The same at once, for one sequence or several that are joined."""
        found = self._narrow(hidden)
        return Reading.of(self._eager_logits(hidden)) if found is None else found

    def _eager_logits(self, hidden: Tensor) -> Tensor:
        with threads.returned():
            return self.adapter.logits(hidden)

    def _narrow(self, hidden: Tensor) -> Reading | None:
        """The same from flat passes, or from what was captured for few rows."""
        if self.flat is not None:
            return self.flat.readout.read(hidden)
        if self.parts is not None and (found := self.parts.read(hidden)) is not None:
            return found
        return self.graphs.read(hidden)

    @property
    def remembers(self) -> bool:
        """True if layers have a memory of their own, so that passes must be chains."""
        return bool(self.cache_shape.remembering)

    def capture(self, counts: Collection[int]) -> None:
        """Capture passes of up to these numbers of rows from now on, and check that they may."""
        self.graphs.use(counts)
        self.hold_captured(counts)

    def hold_captured(self, counts: Collection[int], *, seed: int = 0) -> None:
        """Refuse captured passes of these numbers of rows that are further off than eager ones.

        They run over tokens of `text`, beside eager ones and the same model in a wider type.
        `seed` draws where the text begins, and trees.
        """
        plan = PassPlan.over(self.text, counts, self.adapter.max_positions, seed)
        with eager(self):
            truth = PassTruth.of(plan, wider(self), self)
        run = PassRun(self, plan)
        run.prompt()
        for n in plan.passes:
            truth.hold(run, n, f"a captured pass of {n} rows", "use --compile off")

    @property
    def precision(self) -> str:
        """The type of the model's numbers, and of its weights where those are quantised."""
        name = str(self.dtype).removeprefix("torch.")
        return name if self.quantized is None else f"{name}, {self.quantized} weights"

    def weight_bytes(self) -> int:
        """Memory of the distinct parameters and buffers, without those left on disk.

        And of what flat passes hold of them once more.
        """
        on_disk = (self.layer_bytes(i) for i in range(self.n_layers) if self.adapter.on_disk(i))
        return _bytes([self.model]) - sum(on_disk) + copied_bytes(self.model.modules())

    def layers_by_place(self) -> dict[str, int]:
        """Count the layers at each place."""
        places = enumerate(map(str, self.cache_shape.devices))
        return dict(Counter("disk" if self.adapter.on_disk(i) else name for i, name in places))

    def layer_bytes(self, layer: int) -> int:
        """Count the bytes that a pass reads of one layer's weights."""
        return _bytes([self.adapter.layers[layer]])

    def readout_bytes(self) -> int:
        """Count the bytes that a pass reads around its layers: projections, final norm and head."""
        around = (getattr(self.adapter.body, name) for name in self.adapter.around)
        projections = [part for part in around if not isinstance(part, nn.Embedding)]
        return sum(_bytes([part]) for part in (*projections, self.adapter.readout_parts()))

    def part_bytes(self, layers: range) -> int:
        """Memory of what runs these layers and reads out after them."""
        return _bytes(self.adapter.parts(layers))


def at_meeting(model: StagedModel, meeting: Meeting) -> StagedModel:
    """The same model, whose passes wait for those of other sequences."""
    twin = copy.copy(model)
    twin.meeting = meeting
    return twin


@contextmanager
def restored(model: StagedModel) -> Iterator[None]:
    """Passes of `model` run afterwards as they do now, whatever is captured meanwhile."""
    before = model.graphs, model.flat, model.parts
    model.graphs = Graphs(model.adapter)
    try:
        yield
    finally:
        model.graphs, model.flat, model.parts = before


@contextmanager
def eager(model: StagedModel) -> Iterator[None]:
    """Passes of `model` run eagerly for a while."""
    with restored(model):
        model.flat = model.parts = None
        yield


def wider(model: StagedModel) -> StagedModel:
    """The same model computing in a wider type, over the same weights: slow, for checks."""
    dtype = WIDER[model.dtype]
    twin = copy.copy(model)
    twin.adapter = wide_adapter(model.adapter, dtype)
    twin.dtype, twin.cache_shape = dtype, replace(model.cache_shape, dtype=dtype)
    twin.graphs = Graphs(twin.adapter)
    twin.flat = twin.parts = None
    return twin


def _ends(devices: Sequence[torch.device]) -> list[int]:
    """Find for each layer the first one after it that stands on another device."""
    ends = [len(devices)] * len(devices)
    for i in range(len(devices) - 2, -1, -1):
        ends[i] = ends[i + 1] if devices[i] == devices[i + 1] else i + 1
    return ends


def _words(vocab_size: int) -> tuple[int, ...]:
    """Draw tokens from a vocabulary, the same ones each time."""
    draw = random.Random(0)
    return tuple(draw.randrange(vocab_size) for _ in range(WORDS))


def _bytes(modules: Sequence[nn.Module]) -> int:
    held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    # What is on disk has no address.
    tensors = {t.data_ptr() or id(t): t for whole in held for t in parts(whole) if t.numel()}
    plain: int = sum(t.numel() * t.element_size() for t in tensors.values())
    return plain + sum(map(packed_bytes, modules))
