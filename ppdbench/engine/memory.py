"""Layers that remember: tails of convolutions and recurrent states, and how they forget.

Rows of keys and values are forgotten by counting fewer of them. A recurrent state holds all rows
at once, so it is kept as it was before some of them, and what was accepted is read again: by the
mixer of the layer alone, from the inputs that it had. Where to go back to is said by the pass that
comes next, as for keys and values, and those rows are read in front of its own, so that weights
are read once for both. A mixer that runs row by row whatever it is given would read the weights
for each row again: of its states those behind each of the latest rows are kept.

All of transformers' mixers ask one object for their states, under the names below, and one cache
of ours answers for every family.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ppdbench.engine.anatomy import names_in
from ppdbench.engine.cache import CacheShape, KVCache
from ppdbench.engine.joined import JoinedCache
from ppdbench.engine.masks import Step
from ppdbench.errors import UnsupportedModel

# So many rows may be read again in front of a pass. Where more wait, they are read on their own,
# and the state behind them is kept.
READ_AGAIN = 16
# A state is kept before each pass of several rows, and of passes of one row before each so-manieth.
APART = 16
LATEST = 2
# Where rows run one by one, the states behind so many of the latest are kept.
EACH = 16
# So many copies of a layer's states there are at most: the present one, the one behind the
# prompt, and the latest of others.
COPIES, COPIES_BY_ROW = 2 + LATEST, 2 + EACH
CHAINS_ONLY = (
    "layers with a memory of their own read one row after another, so branches of a tree, rows "
    "that are no tokens are not for this model; use a method that drafts chains, one sequence at a "
    "time"
)

# The names by which mixers take their cache.
CACHES = ("cache_params", "past_key_values")

# What a mixer gives for rows [batch, n, ...]: one tensor or several.
Given = Any
# Runs a mixer over rows [batch, n, hidden].
Run = Callable[[Tensor], Given]


@dataclass(slots=True)
class States:
    """The tails and recurrent states of one layer by their number, as its mixer made them."""

    tails: dict[int, Tensor] = field(default_factory=dict)
    recurrent: dict[int, Tensor] = field(default_factory=dict)

    def copy(self) -> States:
        """The same numbers elsewhere: mixers write in place."""
        return States(
            {i: tail.clone() for i, tail in self.tails.items()},
            {i: state.clone() for i, state in self.recurrent.items()},
        )

    @property
    def nbytes(self) -> int:
        """Memory held."""
        held = (*self.tails.values(), *self.recurrent.values())
        return sum(t.numel() * t.element_size() for t in held)


class LayerMemory:
    """The memory of one layer: its states behind `length` rows, and the inputs of all rows."""

    def __init__(self, capacity: int) -> None:
        self.now = States()
        self.length = 0
        self._capacity = capacity
        self._inputs: Tensor | None = None  # [batch, capacity, hidden]
        # States behind so many rows: behind the prompt, and the latest of others.
        self._marks: list[tuple[int, States]] = []

    def back_to(self, length: int) -> Tensor | None:
        """Go back to a state of `length` rows or fewer.

        Returns the inputs [batch, n, hidden] that have to be read again to get there.
        """
        self._marks = [mark for mark in self._marks if mark[0] <= length]
        if self.length == length:
            return None
        self.length, kept = self._marks[-1] if self._marks else (0, States())
        self.now = kept.copy()
        if self.length == length:
            return None
        assert self._inputs is not None, "rows that were read have been noted"
        return self._inputs[:, self.length : length]

    def note(self, start: int, rows: Tensor) -> None:
        """Note the inputs of rows from `start` on: [batch, n, hidden]."""
        if self._inputs is None:
            batch, _, width = rows.shape
            self._inputs = rows.new_empty(batch, self._capacity, width)
        self._inputs[:, start : start + rows.shape[1]] = rows

    def mark(self, n_rows: int) -> None:
        """Keep the states as they are before a pass of `n_rows`, unless others are near enough."""
        last = self._marks[-1][0] if self._marks else -APART
        if n_rows > 1 or self.length - last >= APART:
            self._keep(LATEST)

    def mark_row(self) -> None:
        """Keep the states as they are before a row."""
        self._keep(EACH)

    def _keep(self, latest: int) -> None:
        """Keep the present states, those behind the prompt and so many others."""
        last = self._marks[-1][0] if self._marks else 0
        if self.length > last:
            self._marks.append((self.length, self.now.copy()))
            del self._marks[1:-latest]

    def clear(self) -> None:
        """Forget everything, numbers included."""
        self.now, self.length, self._inputs, self._marks = States(), 0, None, []

    @property
    def nbytes(self) -> int:
        """Memory held."""
        inputs = 0 if self._inputs is None else self._inputs.numel() * self._inputs.element_size()
        return inputs + self.now.nbytes + sum(kept.nbytes for _, kept in self._marks)


class StatesByLayer:
    """States as mixers ask for them, by the names and arguments that they have in transformers."""

    def states(self, layer: int) -> States:
        """The states of a layer as they are now."""
        raise NotImplementedError

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The end of what a convolution has seen; None before the first row."""
        return self.states(layer_idx).tails.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The recurrent state, which may be written to; None before the first row."""
        return self.states(layer_idx).recurrent.get(state_idx)

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> Tensor:
        """Take what a convolution sees next [batch, width, n]; the same behind what it saw."""
        tails = self.states(layer_idx).tails
        before = tails.get(state_idx)
        if before is None:
            length = conv_kernel_size or conv_states.shape[-1]
            seen = pad(conv_states, (max(0, length - conv_states.shape[-1]), 0))
        else:
            length = before.shape[-1]
            seen = torch.cat([before, conv_states], dim=-1)
        tails[state_idx] = seen[..., -length:].clone()
        return seen

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        """Take a new recurrent state."""
        self.states(layer_idx).recurrent[state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int = 0) -> bool:
        """False: no more of what a convolution saw is kept than it looks at."""
        return False


class _Counted(StatesByLayer):
    """States that are only counted."""

    def __init__(self) -> None:
        self._held: dict[int, States] = {}

    def states(self, layer: int) -> States:
        """The states of a layer, none at first."""
        return self._held.setdefault(layer, States())

    @property
    def nbytes(self) -> int:
        """Memory that they would take."""
        return sum(states.nbytes for states in self._held.values())


class RememberingCache(StatesByLayer, KVCache):
    """The cache of a model some of whose layers have a memory of their own.

    Mixers ask it for their states, and hand it new ones, as they would a cache of transformers.
    `by_rows` says whether rows run one by one and states are kept behind each; None: where a mixer
    runs them so anyway.
    """

    by_rows: bool | None = None

    def __init__(
        self,
        shape: CacheShape,
        capacity: int,
        *,
        layers: range | None = None,
    ) -> None:
        super().__init__(shape, capacity, layers=layers)
        self._memories = {i: LayerMemory(capacity) for i in self.layers if i in shape.remembering}

    def states(self, layer: int) -> States:
        """The states of a layer behind the rows that it has read."""
        return self._memories[layer].now

    def begin(self, step: Step, start_layer: int, stop_layer: int) -> None:
        """Announce a pass; one whose rows do not follow each other is refused."""
        if not step.in_line:
            raise UnsupportedModel(CHAINS_ONLY)
        super().begin(step, start_layer, stop_layer)

    def read(self, layer: int, rows: Tensor, run: Run, *, forgets: bool = False) -> Given:
        """The output of a layer's mixer over the rows of the pass, behind all before them.

        They are read one by one where a mixer that is given several `forgets` what was before
        them, and in passes of a fixed shape, where no row may depend on how many there are.
        """
        step, memory = self._step, self._memories[layer]
        assert step is not None, "begin() was not called"
        new = rows[:, : rows.shape[1] - step.idle]
        again = memory.back_to(step.start)
        memory.note(step.start, new)
        by_rows = bool(memory.length) and (forgets if self.by_rows is None else self.by_rows)
        if by_rows or (memory.length and (forgets or step.rows is not None)):
            run = partial(_one_by_one, run, memory if by_rows else None)
        if again is not None and again.shape[1] > READ_AGAIN:
            run(again)
            memory.length, again = step.start, None
        if again is None and not by_rows:
            memory.mark(new.shape[1])
        out = run(new if again is None else torch.cat([again, new], dim=1))
        memory.length = step.end
        return _each(lambda part: _last(part, new.shape[1], step.idle), out)

    def wipe(self) -> None:
        """Forget all numbers, after a pass that wrote NaN."""
        super().wipe()
        for memory in self._memories.values():
            memory.clear()

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return super().nbytes + sum(memory.nbytes for memory in self._memories.values())


def states_bytes(layers: Sequence[nn.Module], memories: Sequence[str | None], width: int) -> int:
    """Memory of the states of layers on the meta device, copies to go back to included.

    Each mixer reads one row of `width` numbers there, which costs nothing but says what it keeps.
    """
    total = 0
    for layer, path in zip(layers, memories, strict=True):
        if path is None:
            continue
        there, mixer = _Counted(), layer.get_submodule(path)
        taken = inspect.signature(inspect.unwrap(type(mixer).forward)).parameters
        row = torch.empty(1, 1, width, device="meta", dtype=next(mixer.parameters()).dtype)
        mixer(row, **{next(name for name in CACHES if name in taken): there})
        total += there.nbytes * (COPIES_BY_ROW if forgets(type(mixer).forward) else COPIES)
    return total


def _one_by_one(run: Run, memory: LayerMemory | None, rows: Tensor) -> Given:
    """Run rows one after another; a `memory` keeps the states before each."""
    given = []
    for row in torch.split(rows, 1, dim=1):
        if memory is not None:
            memory.mark_row()
        given.append(run(row))
        if memory is not None:
            memory.length += 1
    return _joined(given)


def _joined(given: Sequence[Given]) -> Given:
    """Join what a mixer gave for some rows and for those behind them."""
    return _each(lambda *parts: torch.cat(parts, dim=1), *given)


def _each(make: Callable[..., Tensor], *given: Given) -> Given:
    """Make something of every tensor that a mixer gives."""
    if isinstance(given[0], tuple):
        return tuple(make(*parts) for parts in zip(*given, strict=True))
    return make(*given)


def _last(rows: Tensor, n: int, idle: int) -> Tensor:
    """The last `n` of rows [batch, n, ...], and zeros for those that are not in use."""
    return pad(rows[:, -n:], (0, 0) * (rows.ndim - 2) + (0, idle))


def install(layers: Sequence[nn.Module], memories: Sequence[str | None]) -> None:
    """Make the mixers of `layers`, which stand at these paths in them, read through our cache."""
    for layer, path in zip(layers, memories, strict=True):
        if path is not None:
            mixer: Any = layer.get_submodule(path)
            mixer.forward = MethodType(_read, mixer)


def _read(mixer: Any, hidden_states: Tensor, *given: Any, **named: Any) -> Given:
    """A mixer's forward pass, as far as the cache does not have it already."""
    named |= dict(zip(_taken(type(mixer).forward), given, strict=False))
    name = next((name for name in CACHES if name in named), None)
    cache = None if name is None else named[name]
    if isinstance(cache, JoinedCache):
        parts = zip(cache.parts, cache.rows_of_parts, strict=True)
        own = [_read(mixer, hidden_states[:, rows], **{**named, str(name): c}) for c, rows in parts]
        return _joined(own)
    # To a mixer a mask says which rows are padding, of which there is none.
    named |= {name: None for name in named if name.endswith("mask")}
    run: Run = partial(type(mixer).forward, mixer, **named)
    if not isinstance(cache, RememberingCache):
        return run(hidden_states)
    layer: int = mixer.layer_idx
    return cache.read(layer, hidden_states, run, forgets=forgets(type(mixer).forward))


class Forgetful(nn.Module):
    """A mixer that reads each pass as if nothing was before it, and remembers nothing of it."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Given:
        """Run the mixer without a cache."""
        forward = type(self.mixer).forward
        return forward(
            self.mixer, hidden_states, **{n: None for n in CACHES if n in _taken(forward)}
        )


@cache
def _taken(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The names of all that a mixer takes beside rows."""
    return tuple(inspect.signature(inspect.unwrap(forward)).parameters)[2:]


@cache
def forgets(forward: Callable[..., Any]) -> bool:
    """True if a mixer, given several rows, begins them without the state that it has.

    Those that scan rows in a function of their own do unless they hand it a state to begin with.
    """
    named = names_in(forward)
    if "get_recurrent_state" not in named or not any("scan" in n or "chunk" in n for n in named):
        return False
    constants = inspect.unwrap(forward).__code__.co_consts
    return not any(word.startswith("initial_state") for word in _words(constants))


def _words(constants: Iterable[object]) -> Iterator[str]:
    """The strings among constants, the names of arguments in calls included."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from _words(constant)
