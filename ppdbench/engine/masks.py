"""Masks: the query positions and cache rows of a forward pass, and who may see whom.

A `Step` is plain data made before the layers run, so that nothing inside them depends on
the host. Rows are slots of the cache; positions are what the model is told. They differ
for trees (siblings share a position, never a row).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Rows that join a pass behind a tree: the rows that each one sees, and how deep it stands.
Joined = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
# Where queries and keys stand: [1, query] and [1, key].
Places = tuple[Tensor, Tensor]

# Chains of up to so many rows take their masks from one table that is made once.
PREBUILT_ROWS = 64
# Parts of tables that are kept: example after example comes by the same lengths.
KEPT_PARTS = 4096


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """Rows of a pass whose keys and values are trained, whatever the layers make of them.

    `keys` and `values` [layers, heads, rows, head_dim] belong to the rows from `first` on.
    """

    keys: Tensor
    values: Tensor
    first: int = 0

    @property
    def n_rows(self) -> int:
        """The number of these rows."""
        return self.keys.shape[2]

    def of(self, layer: int) -> TrainedRows:
        """Return one layer's rows, as if there were no other layer."""
        return TrainedRows(self.keys[layer : layer + 1], self.values[layer : layer + 1], self.first)

    def over(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Put these rows in place of a layer's own, [batch, heads, query, head_dim]."""
        return self._put(key, self.keys[layer]), self._put(value, self.values[layer])

    def _put(self, computed: Tensor, trained: Tensor) -> Tensor:
        rows = trained.to(computed).expand(len(computed), -1, -1, -1)
        before, after = computed[:, :, : self.first], computed[:, :, self.first + self.n_rows :]
        return torch.cat([before, rows, after], dim=2)


@dataclass(frozen=True, slots=True)
class Sights:
    """The rows of a pass that each of its rows sees, counted from its first.

    Those of row i are `rows[offsets[i]:offsets[i + 1]]`, in the order of their positions and
    itself last: then what is summed over them comes in the order that it has in a chain.
    """

    rows: np.ndarray  # int32
    offsets: np.ndarray  # int32

    @classmethod
    def of(cls, seen: np.ndarray, depths: Sequence[int]) -> Sights:
        """Read off a mask [row, row]."""
        deep = np.asarray(depths)
        found = [_by_depth(np.flatnonzero(line), deep, row) for row, line in enumerate(seen)]
        ends = np.cumsum([0, *map(len, found)], dtype=np.int32)
        return cls(np.concatenate(found).astype(np.int32), ends)


def _by_depth(seen: np.ndarray, depths: np.ndarray, itself: int) -> np.ndarray:
    others = seen[seen != itself]
    return np.append(others[np.argsort(depths[others], kind="stable")], itself)


@dataclass(slots=True)
class Step:
    """One pass over `n_query` new rows that start at cache row `start`.

    They stand at `positions`; `placed` are these, or what makes them once somebody asks: most
    passes of kernels never do. `contiguous` says that positions are start, start+1, ..., so that
    position tables can be sliced instead of gathered. `visible` is None where causal
    order alone decides (one query, or a prefill from row 0); else a mask [1, query,
    key], which may be part of a table that other steps share: never written to. `rows`
    holds the rows to write as a tensor, for shapes that stay fixed; `idle` of them, the last,
    only fill up the shape. `given` are keys and values that are not left to the layers. `sights`
    says of a tree what `visible` says of its rows: they see all that lies before them besides.
    """

    start: int
    n_query: int
    key_length: int
    placed: Tensor | Callable[[], Tensor]  # [1, query]
    contiguous: bool
    visible: Tensor | None = None
    # For windows to measure; worked out only where there are some.
    places: Callable[[], Places] | None = None
    rows: Tensor | None = None
    idle: int = 0
    given: tuple[TrainedRows, ...] = ()
    sights: Sights | None = None
    in_line: bool = False
    """Each row follows the one before it, but for those that only fill up the shape."""
    # Made of the above when somebody asks; a changed copy begins without.
    _windowed: dict[int, Tensor] = field(default_factory=dict, init=False)
    _added: dict[tuple[int | None, int, torch.dtype], Tensor] = field(
        default_factory=dict, init=False
    )
    _elsewhere: dict[torch.device, Step] = field(default_factory=dict, init=False)
    # As flat passes take it, who put it there.
    flat: Any = field(default=None, init=False)

    @property
    def positions(self) -> Tensor:
        """The places of the rows in their text, [1, query]."""
        if callable(self.placed):
            self.placed = self.placed()
        return self.placed

    @property
    def end(self) -> int:
        """The first cache row after those this pass writes."""
        return self.start + self.n_query - self.idle

    @property
    def ahead(self) -> Tensor:
        """The places that rows stand ahead of their numbers in the pass, [query]."""
        numbers = torch.arange(self.n_query, device=self.positions.device)
        return self.positions[0] - numbers

    def key_places(self) -> Tensor:
        """The positions of the keys that are looked at, [1, key]."""
        if self.places is not None:
            return self.places()[1]
        return torch.arange(self.key_length, device=self.positions.device)[None]

    def on(self, device: torch.device) -> Step:
        """The same pass for layers on another device: what they read is moved there once."""
        if self.positions.device == device:
            return self
        if device not in self._elsewhere:
            places = self.places
            self._elsewhere[device] = replace(
                self,
                placed=self.positions.to(device),
                visible=None if self.visible is None else self.visible.to(device),
                places=None if places is None else lambda: _moved(places(), device),
                rows=None if self.rows is None else self.rows.to(device),
            )
        return self._elsewhere[device]

    def mask(self, window: int | None) -> Tensor | None:
        """The boolean mask [1, 1, query, key] for layers with this window."""
        if self.visible is None:
            return None
        if window is None:
            return self.visible[:, None]
        if window not in self._windowed:
            assert self.places is not None
            queries, keys = self.places()
            distance = queries[:, :, None] - keys[:, None, :]
            self._windowed[window] = (self.visible & (distance < window))[:, None]
        return self._windowed[window]

    def added(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor | None:
        """The same as numbers added to scores, [1, 1, groups * query, key].

        Each layer would make them of booleans anew. `groups` query heads share a KV head, as
        rows of one product; a single query is broadcast to them.
        """
        seen = self.mask(window)
        if seen is None:
            return None
        kind = window, groups, dtype
        if kind not in self._added:
            unseen = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            unseen.masked_fill_(~seen, float("-inf"))
            self._added[kind] = unseen.repeat(1, 1, groups if self.n_query > 1 else 1, 1)
        return self._added[kind]


def _moved(places: Places, device: torch.device) -> Places:
    queries, keys = places
    return queries.to(device), keys.to(device)


@dataclass(frozen=True, slots=True)
class FixedShape:
    """The one shape of every decoding pass: query rows, and key rows that they read.

    Each row is then computed by the same kernel in the same order, whatever the others hold.
    Rows that a pass does not need are written behind the keys, where nobody looks.
    """

    rows: int
    keys: int


class _Tables:
    """Tables that steps take parts of; they know no step, so that none lives on for them."""

    def __init__(self, index: Tensor) -> None:
        self._index = index  # [1, capacity]
        self._causal: Tensor | None = None  # [1, PREBUILT_ROWS, 2 * capacity]

    def rows(self, start: int, end: int) -> Tensor:
        """Consecutive numbers: [1, end - start]."""
        return self._index[:, start:end]

    def below(self, start: int, n: int) -> Tensor:
        """The mask of a few consecutive rows behind `start` others: [1, n, start + n]."""
        capacity, device = self._index.shape[1], self._index.device
        if self._causal is None:
            with torch.inference_mode(False):
                rows = torch.arange(PREBUILT_ROWS, device=device)[:, None] + capacity
                keys = torch.arange(2 * capacity, device=device)
                self._causal = (keys <= rows)[None]
        # Of row i of the table the first capacity + 1 + i are seen, of row i here start + 1 + i.
        hidden = capacity - start
        return self._causal[:, :n, hidden : hidden + start + n]


class StepMaker:
    """Makes the steps of a run from index tensors and masks that are made once.

    What a chain or a tree sees is the same wherever it starts, but for how much lies before it:
    its mask is a view of a wider one. `window` is the narrowest of the model's sliding windows,
    if it has any. With a `shape` all steps but prefills have it.
    """

    def __init__(
        self,
        capacity: int,
        device: torch.device,
        window: int | None = None,
        shape: FixedShape | None = None,
    ) -> None:
        self.capacity = capacity
        self.device = device
        self.window = window
        self.shape = shape
        self.index = torch.arange(capacity, device=device)[None]  # [1, capacity]
        tables = _Tables(self.index)
        self._rows = lru_cache(maxsize=KEPT_PARTS)(tables.rows)
        self._below = lru_cache(maxsize=KEPT_PARTS)(tables.below)

    def prefill(self, n_query: int) -> Step:
        """The first tokens of a sequence."""
        step = Step(0, n_query, n_query, self.index[:, :n_query], contiguous=True, in_line=True)
        if n_query > 1 and self.window is not None and n_query > self.window:
            self._causal(step)
        return step

    def chain(self, start: int, n_query: int) -> Step:
        """Consecutive tokens of a sequence; keys are exactly the rows so far."""
        end = start + n_query
        step = Step(
            *(start, n_query, end, lambda: self._rows(start, end)), contiguous=True, in_line=True
        )
        if self.shape is not None:
            return self._filled_up(self._causal(step), self.shape)
        if n_query > 1 and (start > 0 or (self.window is not None and end > self.window)):
            self._causal(step)
        return step

    def _causal(self, step: Step) -> Step:
        step.visible = self._triangle(step.start, step.n_query)
        start, end = step.start, step.end
        step.places = lambda: (self._rows(start, end), self.index[:, :end])
        return step

    def _triangle(self, start: int, n: int) -> Tensor:
        """Make the mask of `n` consecutive rows behind `start` others: [1, n, start + n]."""
        if n > PREBUILT_ROWS:
            return self.index[:, None, : start + n] <= self.index[:, start : start + n, None]
        return self._below(start, n)

    def _filled_up(self, step: Step, shape: FixedShape) -> Step:
        """The same pass in the fixed shape."""
        idle = shape.rows - step.n_query
        if idle < 0 or step.end > shape.keys:
            raise ValueError(
                f"a pass of {step.n_query} rows up to row {step.end} in a shape of {shape}"
            )
        assert step.visible is not None
        visible = torch.zeros(1, shape.rows, shape.keys, dtype=torch.bool, device=self.device)
        visible[:, : step.n_query, : step.key_length] = step.visible
        # A softmax over nothing would be NaN: idle rows look at the first key.
        visible[:, step.n_query :, 0] = True
        positions = torch.nn.functional.pad(step.positions, (0, idle))
        behind = self.index[0, shape.keys : shape.keys + idle]
        return replace(
            step,
            n_query=shape.rows,
            key_length=shape.keys,
            placed=positions,
            contiguous=False,
            visible=visible,
            places=lambda: (positions, self._keys_behind(step, shape)),
            rows=torch.cat([self.index[0, step.start : step.end], behind]),
            idle=idle,
            sights=None,
        )

    def _keys_behind(self, step: Step, shape: FixedShape) -> Tensor:
        """Return the positions of a step's keys and of the rows behind them, to the shape's end."""
        assert step.places is not None
        later = self.index[:, step.key_length : shape.keys]
        return torch.cat([step.places()[1], later], dim=1)

    def tree(
        self,
        start: int,
        parents: Sequence[int],
        last: int | None = None,
        joined: Sequence[Joined] = (),
    ) -> Step:
        """A flattened tree whose node i hangs on node `parents[i]` (-1: on the sequence).

        Every node sees the sequence, its ancestors and itself; its position is its depth, or
        `last` where it would lie beyond that. Rows that joined the tree see the sequence,
        themselves and the rows they name, and stand as deep as they say.
        """
        tree = _family(tuple(parents), tuple(joined), self.capacity, self.device)
        positions, visible = tree.behind(start)
        if last is not None and start + tree.deepest > last:
            positions = positions.clamp(max=last)
        n = positions.shape[1]
        step = Step(
            start=start,
            n_query=n,
            key_length=start + n,
            placed=positions,
            contiguous=False,
            visible=visible,
            places=lambda: (positions, torch.cat([self.index[:, :start], positions], dim=1)),
            sights=tree.sights,
        )
        return step if self.shape is None else self._filled_up(step, self.shape)


def numbers(given: Sequence[int], device: torch.device) -> Tensor:
    """Tokens or positions on a device: [1, n]."""
    # Behind a pass torch takes twice as long to look through a list.
    held = torch.frombuffer(array("q", given), dtype=torch.long).unsqueeze(0)
    return held if device.type == "cpu" else held.to(device)


def behind(length: int, reach: Tensor, positions: Tensor, own: Tensor) -> Step:
    """The pass over rows at `positions` [row] behind a text of `length` rows that ran before.

    A row sees the text up to row `reach` [row], that one included, and of the rows with it
    those that `own` [row, row] names, which should name itself.
    """
    text = torch.arange(length, device=positions.device)
    n = len(positions)
    return Step(
        start=length,
        n_query=n,
        key_length=length + n,
        placed=positions[None],
        contiguous=False,
        visible=torch.cat([text <= reach[:, None], own], dim=1)[None],
        places=lambda: (positions[None], torch.cat([text, positions])[None]),
    )


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Rows of a tree: whom each one sees, and how deep it stands.

    `seen` [1, row, capacity + row] has room for the longest sequence before them, which all
    see; a shorter one takes the end of it.
    """

    seen: Tensor
    depths: Tensor  # [1, row]
    deepest: int
    sights: Sights
    _behind: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def behind(self, start: int) -> tuple[Tensor, Tensor]:
        """Positions [1, row] and mask [1, row, start + row] of the tree behind `start` rows.

        Kept, because example after example comes by the same lengths.
        """
        if start not in self._behind:
            with torch.inference_mode(False):  # to serve everywhere, as what they are made of
                first = self.seen.shape[2] - self.seen.shape[1] - start
                self._behind[start] = self.depths + start, self.seen[:, :, first:]
        return self._behind[start]


@lru_cache(maxsize=64)
def _family(
    parents: tuple[int, ...], joined: tuple[Joined, ...], capacity: int, device: torch.device
) -> TreeRows:
    """Kept, because decoding meets the same tree again and again behind longer sequences."""
    sights, depths = _lines(parents)
    for sees, deep in joined:
        for row, others in enumerate(sees, start=len(depths)):
            sights.append(sum(1 << other for other in {row, *others}))
        depths += deep
    seen = np.ones((1, len(depths), capacity + len(depths)), np.bool_)
    seen[0, :, capacity:] = matrix = _matrix(sights)
    # Ordinary tensors even if made while decoding, so that they serve everywhere.
    with torch.inference_mode(False):
        return TreeRows(
            torch.from_numpy(seen).to(device),
            torch.tensor([depths], dtype=torch.long, device=device),
            max(depths, default=0),
            Sights.of(matrix, depths),
        )


def _lines(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Whom each node sees, itself and its ancestors as bits of a number, and how deep it is."""
    sights: list[int] = []
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"tree node {node} names parent {parent}; use -1..{node - 1}")
        sights.append(1 << node | (sights[parent] if parent >= 0 else 0))
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return sights, depths


def _matrix(sights: Sequence[int]) -> np.ndarray:
    """Bits of numbers, the lowest first, as booleans [row, row]."""
    n = len(sights)
    width = -(-n // 8)
    packed = np.frombuffer(b"".join(s.to_bytes(width, "little") for s in sights), np.uint8)
    return np.unpackbits(packed.reshape(n, width), axis=1, count=n, bitorder="little").view(bool)
