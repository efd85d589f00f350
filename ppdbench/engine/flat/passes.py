"""Flat passes of one model: its layers as one program, its readout as another.

A pass over several rows computes each of them as a pass over that row alone would, so that what
a method verifies is bit for bit what greedy decoding gives. Chains and trees of any size, any
range of layers, taps behind each, of one sequence or several side by side; masks of other kinds
are left to eager passes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import is_not
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from ppdbench.engine.flat.heads import handed_to
from ppdbench.engine.flat.layers import LayerWriter
from ppdbench.engine.flat.ops import NOT_STORED, CacheBlocks, Call, Pass, Program, Turns, run_all
from ppdbench.engine.flat.rotation import pair_of
from ppdbench.engine.flat.understood import NotUnderstoodError
from ppdbench.engine.joined import JoinedCache, JoinedStep
from ppdbench.engine.reading import Peaks, Reading

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.cache import KVCache
    from ppdbench.engine.masks import Sights, Step
from ppdbench.engine.taps import Tap, stretches

CPU = torch.device("cpu")
# Rows of a prompt that run at once: room for them is kept.
AT_ONCE = 256


class FlatLayers:
    """Some layers of a model as one program; their products must be laid out flat.

    `unattended` layers lack their attention, `unfed` ones their MLP. Of those `within` which it
    stands the attention alone is written, over what is handed to it: then that are the rows.
    """

    def __init__(
        self,
        adapter: Adapter,
        layers: Collection[int],
        *,
        unattended: Collection[int] = (),
        unfed: Collection[int] = (),
        within: Collection[int] = (),
    ) -> None:
        self.adapter, self.dtype = adapter, adapter.dtype
        width = max((handed_to(adapter, i) for i in within), default=adapter.width)
        self._program = Program(self.dtype, width)
        self._marks, self._own = [0], frozenset(layers)
        self._blocks: WeakKeyDictionary[KVCache | JoinedCache, CacheBlocks] = WeakKeyDictionary()
        writer = LayerWriter(adapter, self._program)
        for index in range(len(adapter.layers)):
            if index in layers:
                try:
                    if index in within:
                        writer.block(index)
                    else:
                        has = index not in unattended, index not in unfed
                        writer.layer(index, attention=has[0], mlp=has[1])
                except (NotUnderstoodError, ValueError) as error:  # or products of other sizes
                    raise NotUnderstoodError(f"layer {index}: {error}") from error
            self._marks.append(self._program.mark())
        self._kinds, self._rotation = writer.kinds, writer.rotation
        self._sources = writer.shape.sources
        self._growth = writer.growth
        self._out = writer.out
        # The tables of the model by kind, and what was made of them.
        self._whole: tuple[Sequence[object], Turns] | None = None

    def run(
        self,
        hidden: Tensor,
        layers: range,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None = None,
        behind: Callable[[Tensor], Call] | None = None,
    ) -> Tensor | None:
        """Run these layers over [1, row, hidden], if the pass is one that can run flat.

        From the first layer on tokens [1, row] do as well where their words are what enters it.
        `behind` makes of the rows to come what runs in one go with the last of the layers.
        """
        if len(hidden) != 1 or not self._holds(cache, layers):
            return None
        given = self._given(step, cache)
        if given is None:
            return None
        source, done = hidden.contiguous(), layers.start
        rows, ends = hidden.shape[1], stretches(layers, tap)
        # Of a narrow pass all stretches run in one go; of a prompt a tap lets go of most it sees.
        several = max(1, AT_ONCE // max(1, rows))
        for first in range(0, len(ends), several):
            calls: list[Call] = []
            made: list[tuple[int, Tensor]] = []
            for end in ends[first : first + several]:
                states = self._room(rows)
                calls += self._calls(source, states, range(done, end), given)
                made.append((end, states))
                source, done = states, end
            if behind is not None and done == layers.stop:
                calls.append(behind(source))
            run_all(calls)
            if tap is not None:
                for each in made:
                    tap(*each)
        return source

    def can_run(self, layers: range, step: Step, cache: KVCache | JoinedCache) -> bool:
        """True for a pass of one sequence, or several that are joined, that can run flat."""
        return self._holds(cache, layers) and self._given(step, cache) is not None

    def _room(self, rows: int) -> Tensor:
        return torch.empty((1, rows, self._out.width), dtype=self.dtype)

    def _calls(
        self, source: Tensor, target: Tensor, layers: range, given: Sequence[Pass]
    ) -> list[Call]:
        """Some layers in passes of some of the rows each, one behind another."""
        first, last, at, calls = self._marks[layers.start], self._marks[layers.stop], 0, []
        words = None if source.is_floating_point() else self.adapter.held_words
        if len(given) == 1:
            one = source, target, self._out, given[0]
            return [self._program.call(first, last, *one, words=words)]
        for each in given:
            rows = slice(at, at := at + each.rows)
            some = source[0, rows], target[0, rows], self._out, each
            calls.append(self._program.call(first, last, *some, words=words))
        return calls

    def _holds(self, cache: KVCache | JoinedCache, layers: range) -> bool:
        """True if a cache has the rows of others that some of these layers look at."""
        first = cache.parts[0] if isinstance(cache, JoinedCache) else cache
        sources = self._sources[layers.start : layers.stop]
        return all(source in first.layers for source in sources if source not in layers)

    # What a pass takes beside hidden states

    def _given(self, step: Step, cache: KVCache | JoinedCache) -> Sequence[Pass] | None:
        """Make them once per step; None if the rows see others than a chain's or a tree's do."""
        if step.flat is None or step.flat[0]() is not cache or step.flat[1] is not step.given:
            made: Sequence[Pass]
            if isinstance(cache, JoinedCache):
                assert isinstance(step, JoinedStep)
                if not all(map(is_joinable, step.parts)):
                    return None
                made = self._made_joined(step, cache)
            elif _is_plain(step):
                made = self._made(step, cache)
            else:
                return None
            step.flat = ref(cache), step.given, made  # a cache holds its newest step
        given: Sequence[Pass] = step.flat[2]
        return given

    def _made_joined(self, step: JoinedStep, cache: JoinedCache) -> Sequence[Pass]:
        """Passes over the rows of several sequences, each row over the cache of its own."""
        for part, own in zip(step.parts, cache.parts, strict=True):
            _put_trained(part, own)
        if cache not in self._blocks:
            self._blocks[cache] = CacheBlocks.joined(list(map(self._blocks_of, cache.parts)))
        blocks = self._blocks[cache]
        turns = self._turns(step)
        if step.is_single and len(step.parts) <= AT_ONCE:
            slots = [part.start for part in step.parts]
            return [Pass.of_single(slots, turns, blocks)]
        passes, at = [], 0
        for rows in _portions(step.parts):
            some = slice(at, at := at + len(rows.slots))
            passes.append(rows.as_pass(turns.of(some), blocks))
        return passes

    def _made(self, step: Step, cache: KVCache) -> Sequence[Pass]:
        start, n, blocks = step.start, step.n_query, self._blocks_of(cache)
        # Lists: of the few rows that most passes have they take less time than arrays do.
        in_line = slots = [*range(start, start + n)]
        turns = self._turns(step)
        if step.given:
            _put_trained(step, cache)
            trained = frozenset(_trained(step))
            slots = [NOT_STORED if row in trained else start + row for row in range(n)]
        if step.sights is not None:
            positions = step.positions[0].numpy().astype(np.int32)
            seen, offsets = step.sights.rows + np.int32(start), step.sights.offsets
            rows, places = (slots, positions, seen, offsets), positions[step.sights.rows]
            return [Pass(start, *rows, turns, blocks, places=places)]
        passes = []
        for at in range(0, n, AT_ONCE):
            some = slice(at, at + AT_ONCE)
            lists = slots[some], in_line[some], None, None
            passes.append(Pass(start + at, *lists, turns.of(some), blocks, causal=True))
        return passes

    def _turns(self, step: Step) -> Turns:
        """Tables by kind, of all positions; or of the rows, with what their queries grow by."""
        whole = [self.adapter.whole_rotary(kind, CPU) for kind in self._kinds]
        if self._whole is None or any(map(is_not, whole, self._whole[0])):
            tables = [self._rotation.tables(*pair_of(each)) for each in whole if each is not None]
            made = [(cos.float().contiguous(), sin.float().contiguous()) for cos, sin in tables]
            self._whole = whole, Turns(made, whole=True)
        if self._growth is None:
            return self._whole[1]
        every, places = self._whole[1].tables, step.positions[0]
        turns = [(cos.index_select(0, places), sin.index_select(0, places)) for cos, sin in every]
        factors = self._growth(step.positions[:1]).to(self.dtype).float()
        cos = factors[:, None].repeat(1, self.adapter.cache_shape.head_dim)
        return Turns([*turns, (cos, torch.zeros_like(cos))], whole=False)

    def _blocks_of(self, cache: KVCache) -> CacheBlocks:
        if cache not in self._blocks:
            # Layers that the cache has no rows for are not run over it.
            there = {cache.shape.source_of(i) for i in self._own} & {*cache.layers}
            there = there or {cache.layers[0]}
            anywhere, layers = cache.blocks(min(there)), range(len(self._marks) - 1)
            held = [cache.blocks(i) if i in there else anywhere for i in layers]
            self._blocks[cache] = CacheBlocks(held)
        return self._blocks[cache]


def _is_plain(step: Step) -> bool:
    """True for a chain or a tree."""
    return step.contiguous or step.sights is not None


def is_joinable(step: Step) -> bool:
    """True for one that can run beside others: of a tree alone some rows may be trained."""
    return _is_plain(step) and (step.sights is not None or not step.given)


def _put_trained(step: Step, cache: KVCache) -> None:
    for each in step.given:
        cache.put(step.start + each.first, each.keys, each.values)


def _trained(step: Step) -> list[int]:
    """The rows of a pass whose keys and values are trained."""
    return [i for each in step.given for i in range(each.first, each.first + each.n_rows)]


@dataclass(slots=True)
class _JoinedRows:
    """Rows of several sequences as `Pass` takes them; `counts` are how many each sees of `seen`."""

    slots: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    reach: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def add_chain(self, owner: int, rows: range) -> None:
        """Rows that see all before them and themselves."""
        self.slots += rows
        self.positions += rows
        self.reach += range(rows.start + 1, rows.stop + 1)
        self.counts += [0] * len(rows)
        self.owners += [owner] * len(rows)

    def add_tree(self, owner: int, step: Step, sights: Sights) -> None:
        """Rows that see all before the first of them, and some of one another."""
        slots = list(range(step.start, step.start + step.n_query))
        for row in _trained(step):
            slots[row] = NOT_STORED
        self.slots += slots
        positions = step.positions[0].numpy()
        self.positions += positions.tolist()
        self.reach += [step.start] * step.n_query
        self.seen += (sights.rows + step.start).tolist()
        self.places += positions[sights.rows].tolist()
        self.counts += np.diff(sights.offsets).tolist()
        self.owners += [owner] * step.n_query

    def as_pass(self, turns: Turns, blocks: CacheBlocks) -> Pass:
        """One pass over them all."""
        lists = self.slots, self.positions, self.seen, [*accumulate(self.counts, initial=0)]
        return Pass(
            *(0, *lists, turns, blocks), reach=self.reach, owners=self.owners, places=self.places
        )


def _portions(parts: Sequence[Step]) -> list[_JoinedRows]:
    """The rows of some passes, as many at once as there is room for; a tree's stay together."""
    portions = [_JoinedRows()]

    def room(rows: int) -> _JoinedRows:
        if portions[-1].slots and len(portions[-1].slots) + rows > AT_ONCE:
            portions.append(_JoinedRows())
        return portions[-1]

    for owner, step in enumerate(parts):
        end = step.start + step.n_query
        # What a chain's later rows see, earlier ones have stored: in the same pass or before.
        size = step.n_query if step.sights is not None else AT_ONCE
        for start in range(step.start, end, size):
            some = range(start, min(start + size, end))
            rows = room(len(some))
            if step.sights is None:
                rows.add_chain(owner, some)
            else:
                rows.add_tree(owner, step, step.sights)
    return portions


class FlatReadout:
    """The final norm and the head of a model as one program."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter, self.dtype = adapter, adapter.dtype
        self._program = Program(adapter.dtype, adapter.hidden_size)
        self._logits = LayerWriter(adapter, self._program).readout()

    def read(self, hidden: Tensor) -> Reading | None:
        """Read out after any layer, over [1, row, hidden]; None for more than one sequence."""
        if len(hidden) != 1:
            return None
        call, reading = self.prepared(self.adapter.state(hidden).contiguous())
        run_all([call])
        return reading

    def prepared(self, states: Tensor) -> tuple[Call, Reading]:
        """Prepare a readout of states [1, row, hidden]: the call, and the reading that it fills."""
        rows = states.shape[1]
        logits = torch.empty((1, rows, self._logits.width), dtype=self.dtype)
        peaks, last = Peaks(rows), self._program.mark()
        call = self._program.call(0, last, states, logits, self._logits, peaks=peaks)
        return call, Reading.noted(logits, peaks)


class FlatPasses:
    """Whole passes of a model: of all its layers, or of those that this process runs."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.own = frozenset(i for i, layer in enumerate(adapter.layers) if is_there(layer))
        self.looks_up = adapter.enters_by_row()
        self.layers = FlatLayers(adapter, self.own)
        self.readout = FlatReadout(adapter)

    def run_and_read(
        self,
        hidden: Tensor,
        step: Step,
        cache: KVCache | JoinedCache,
        tap: Tap | None,
        counts: Sequence[int],
        last: int,
    ) -> list[tuple[Tensor, Reading]] | None:
        """Run the layers before `last` over [1, row, hidden] and read out each row, in one go.

        Tokens [1, row] do as well where the model `looks_up` what enters its first layer.
        What comes out is cut into so many rows each, and that before the pass, behind which
        everything takes longer. None where it cannot run so.
        """
        if self.adapter.carried is not None:
            return None
        found: list[tuple[Tensor, Reading]] = []

        def readout(states: Tensor) -> Call:
            call, reading = self.readout.prepared(states)
            cut = states.split_with_sizes([*counts], dim=1)
            found.extend(zip(cut, reading.parts(counts), strict=True))
            return call

        done = self.layers.run(hidden, range(last), step, cache, tap, readout)
        return None if done is None else found

    def without(self, attention: Collection[int], mlp: Collection[int]) -> FlatPasses | None:
        """The same for a model that lacks some blocks, where what is left can run flat."""
        view = copy.copy(self)
        try:
            view.layers = FlatLayers(self.adapter, self.own, unattended=attention, unfed=mlp)
        except NotUnderstoodError:
            return None
        return view


def is_there(layer: nn.Module) -> bool:
    """False for a layer whose weights were freed: all at once, so that one tells."""
    weight = next(layer.parameters(), None)
    return weight is None or weight.numel() > 0
