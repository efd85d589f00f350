"""What one forward pass looks at: query positions, cache rows, and who may see whom.

A `Step` is plain data made before the layers run, so that nothing inside them depends on
the host. Rows are slots of the cache; positions are what the model is told. They differ
for left-padded batches (row = position + padding) and for trees (siblings share a
position, never a row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

# Rows that join a pass behind a tree: the rows that each one sees, and how deep it stands.
Joined = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Given:
    """Rows of a pass whose keys and values are trained, whatever the layers make of them.

    `keys` and `values` [layers, heads, rows, head_dim] belong to the rows from `first` on.
    """

    keys: Tensor
    values: Tensor
    first: int = 0

    @property
    def n_rows(self) -> int:
        """How many rows these are."""
        return self.keys.shape[2]

    def over(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """What a layer made of all rows, [batch, heads, query, head_dim], with these in place."""
        return self._put(key, self.keys[layer]), self._put(value, self.values[layer])

    def _put(self, computed: Tensor, trained: Tensor) -> Tensor:
        rows = trained.to(computed).expand(len(computed), -1, -1, -1)
        before, after = computed[:, :, : self.first], computed[:, :, self.first + self.n_rows :]
        return torch.cat([before, rows, after], dim=2)


@dataclass(slots=True)
class Step:
    """One pass over `n_query` new rows that start at cache row `start`.

    `contiguous` says that positions are start, start+1, ... for every sequence, so that
    position tables can be sliced instead of gathered. `visible` is None where causal
    order alone decides (one query, or a prefill from row 0); else a mask [batch or 1,
    query, key]. `rows` holds the rows to write as a tensor, for shapes that stay fixed; `idle`
    of them, the last, only fill up the shape, and `known` says whether the host knows where
    the others are. `given` are keys and values that are not left to the layers.
    """

    start: int
    n_query: int
    key_length: int
    positions: Tensor  # [batch or 1, query]
    contiguous: bool
    visible: Tensor | None = None
    # Where queries and keys stand, for windows to measure: [batch or 1, query] and [.., key].
    places: tuple[Tensor, Tensor] | None = None
    rows: Tensor | None = None
    idle: int = 0
    known: bool = True
    given: tuple[Given, ...] = ()
    _windowed: dict[int, Tensor] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The first cache row after those this pass writes."""
        return self.start + self.n_query - self.idle

    def mask(self, window: int | None) -> Tensor | None:
        """The boolean mask [batch or 1, 1, query, key] for layers with this window."""
        if self.visible is None:
            return None
        if window is None:
            return self.visible[:, None]
        if window not in self._windowed:
            assert self.places is not None
            queries, keys = self.places
            distance = queries[:, :, None] - keys[:, None, :]
            self._windowed[window] = (self.visible & (distance < window))[:, None]
        return self._windowed[window]


@dataclass(frozen=True, slots=True)
class FixedShape:
    """The one shape of every decoding pass: query rows, and key rows that they read.

    Each row is then computed by the same kernel in the same order, whatever the others hold.
    Rows that a pass does not need are written behind the keys, where nobody looks.
    """

    rows: int
    keys: int


class StepMaker:
    """Makes the steps of a run from index tensors that are allocated once.

    `window` is the narrowest of the model's sliding windows, if it has any. With a `shape`
    all steps but prefills have it.
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

    def prefill(self, n_query: int) -> Step:
        """The first tokens of one unpadded sequence."""
        step = Step(0, n_query, n_query, self.index[:, :n_query], contiguous=True)
        if n_query > 1 and self.window is not None and n_query > self.window:
            self._causal(step)
        return step

    def chain(self, start: int, n_query: int) -> Step:
        """Consecutive tokens of one unpadded sequence; keys are exactly the rows so far."""
        end = start + n_query
        step = Step(start, n_query, end, self.index[:, start:end], contiguous=True)
        if self.shape is not None:
            return self._filled_up(self._causal(step), self.shape)
        if n_query > 1 and (start > 0 or (self.window is not None and end > self.window)):
            self._causal(step)
        return step

    def _causal(self, step: Step) -> Step:
        keys = self.index[:, : step.end]
        step.visible = keys[:, None, :] <= step.positions[:, :, None]
        step.places = (step.positions, keys)
        return step

    def _filled_up(self, step: Step, shape: FixedShape) -> Step:
        """The same pass in the fixed shape."""
        idle = shape.rows - step.n_query
        if idle < 0 or step.end > shape.keys:
            raise ValueError(
                f"a pass of {step.n_query} rows up to row {step.end} in a shape of {shape}"
            )
        assert step.visible is not None
        assert step.places is not None
        visible = torch.zeros(1, shape.rows, shape.keys, dtype=torch.bool, device=self.device)
        visible[:, : step.n_query, : step.key_length] = step.visible
        # A softmax over nothing would be NaN: idle rows look at the first key.
        visible[:, step.n_query :, 0] = True
        positions = torch.nn.functional.pad(step.positions, (0, idle))
        later = self.index[:, step.key_length : shape.keys]
        behind = self.index[0, shape.keys : shape.keys + idle]
        return replace(
            step,
            n_query=shape.rows,
            key_length=shape.keys,
            positions=positions,
            contiguous=False,
            visible=visible,
            places=(positions, torch.cat([step.places[1], later], dim=1)),
            rows=torch.cat([self.index[0, step.start : step.end], behind]),
            idle=idle,
            _windowed={},
        )

    def fixed(self, start: Tensor, n_query: int, key_length: int) -> Step:
        """Consecutive tokens in a shape that never changes: `start` is a tensor of one row.

        Reads `key_length` rows whatever is in them and masks those not yet written, so
        one compiled or captured pass serves every position.
        """
        positions = start + self.index[:, :n_query]
        keys = self.index[:, :key_length]
        return Step(
            start=0,
            n_query=n_query,
            key_length=key_length,
            positions=positions,
            contiguous=False,
            visible=keys[:, None, :] <= positions[:, :, None],
            places=(positions, keys),
            rows=positions[0],
            known=False,
        )

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
        seen, depths = _family(tuple(parents), tuple(joined), self.device)
        positions = depths + start
        if last is not None:
            positions = positions.clamp(max=last)
        n = positions.shape[1]
        step = Step(
            start=start,
            n_query=n,
            key_length=start + n,
            positions=positions,
            contiguous=False,
            visible=torch.nn.functional.pad(seen, (start, 0), value=True)[None],
            places=(positions, torch.cat([self.index[:, :start], positions], dim=1)),
        )
        return step if self.shape is None else self._filled_up(step, self.shape)

    def padded(self, start: int, n_query: int, padding: Tensor) -> Step:
        """Consecutive tokens of sequences padded on the left by `padding` rows each: [batch]."""
        end = start + n_query
        rows, keys = self.index[:, start:end], self.index[:, :end]
        causal = keys[:, None, :] <= rows[:, :, None]  # [1, query, key]
        real = keys >= padding[:, None]  # [batch, key]
        # A padding row must see something, or its softmax would be NaN: itself.
        itself = keys[:, None, :] == rows[:, :, None]
        return Step(
            start=start,
            n_query=n_query,
            key_length=end,
            positions=(rows - padding[:, None]).clamp(min=0),
            contiguous=False,
            visible=(causal & real[:, None, :]) | itself,
            # Rows, not positions: within a sequence their distance is the same, and padding
            # has no positions of its own.
            places=(rows, keys),
        )


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
        positions=positions[None],
        contiguous=False,
        visible=torch.cat([text <= reach[:, None], own], dim=1)[None],
        places=(positions[None], torch.cat([text, positions])[None]),
    )


@lru_cache(maxsize=256)
def _family(
    parents: tuple[int, ...], joined: tuple[Joined, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which rows of a tree see which, [row, row], and how deep each one stands, [1, row].

    Kept, because decoding meets the same tree again and again, each time behind a longer
    sequence.
    """
    n = len(parents) + sum(len(depths) for _, depths in joined)
    seen = np.eye(n, dtype=np.bool_)
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"tree node {node} names parent {parent}; use -1..{node - 1}")
        depths.append(0 if parent < 0 else depths[parent] + 1)
        if parent >= 0:
            seen[node] |= seen[parent]
    for sees, deep in joined:
        for row, others in enumerate(sees, start=len(depths)):
            seen[row, list(others)] = True
        depths += deep
    # Ordinary tensors even if made while decoding, so that they serve everywhere.
    with torch.inference_mode(False):
        return (
            torch.from_numpy(seen).to(device),
            torch.tensor([depths], dtype=torch.long, device=device),
        )
