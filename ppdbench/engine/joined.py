"""Passes of several sequences as one: their rows side by side, each over a cache of its own.

Linear layers see nothing but rows, so that a joined pass reads the weights once for all
sequences. Attention goes by sequence: rows are written to their own cache and look at no other,
whatever the lengths, so that nothing is padded and nothing ever moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain

import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import Step, numbers


@dataclass(slots=True)
class JoinedStep(Step):
    """The passes `parts` of several sequences over the rows of all, one after another."""

    parts: tuple[Step, ...] = ()
    cache: JoinedCache = field(kw_only=True)
    is_single: bool = False
    """Each part is one row that follows those of its sequence."""

    @classmethod
    def of(cls, parts: Sequence[Step], cache: JoinedCache) -> JoinedStep:
        """Put the rows of some passes side by side."""
        single = all(part.n_query == 1 and part.contiguous for part in parts)
        return cls(
            *(0, sum(part.n_query for part in parts), 0),
            partial(_placed, parts),
            contiguous=False,
            parts=tuple(parts),
            cache=cache,
            is_single=single,
        )

    @property
    def rows_of_parts(self) -> list[slice]:
        """The rows of each part among those of all."""
        return slices([part.n_query for part in self.parts])

    def on(self, device: torch.device) -> JoinedStep:
        """The same passes for layers on another device."""
        if self.positions.device == device:
            return self
        return JoinedStep.of([part.on(device) for part in self.parts], self.cache)

    def added(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor:
        """Make the masks of all parts, in the place of one."""
        return JoinedMask.of(self, [part.added(window, groups, dtype) for part in self.parts])


def _placed(parts: Sequence[Step]) -> Tensor:
    """The positions of the rows of some passes, side by side."""
    if all(part.contiguous for part in parts):
        rows = [range(part.start, part.start + part.n_query) for part in parts]
        return numbers([*chain(*rows)], parts[0].positions.device)
    return torch.cat([part.positions for part in parts], dim=1)


class JoinedCache:
    """The caches of some sequences, for passes over rows of all of them."""

    def __init__(self, parts: Sequence[KVCache]) -> None:
        self.parts = tuple(parts)
        self.newest: list[tuple[Tensor, Tensor]] = []
        self._returned: tuple[Tensor, Tensor] | None = None
        self._step: JoinedStep | None = None

    def begin(self, step: Step, start_layer: int, stop_layer: int) -> None:
        """Announce to each cache the rows that its part of the pass is about to write."""
        assert isinstance(step, JoinedStep), "a joined cache takes joined passes"
        for part, own in zip(self.parts, step.parts, strict=True):
            part.begin(own, start_layer, stop_layer)
        self._step, self._returned = step, None

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows of `layer` to their caches; `newest` is what each part looks at.

        What is returned is what came in: only `JoinedMask` knows which row sees which key.
        """
        self.newest = [
            part.update(key[:, :, rows], value[:, :, rows], layer)
            for part, rows in zip(self.parts, self.rows_of_parts, strict=True)
        ]
        self.check_attended()
        self._returned = key, value
        return self._returned

    def look(self, layer: int) -> tuple[Tensor, Tensor]:
        """The same for a layer that writes no rows: `newest` are those of the layer it shares."""
        self.newest = [part.look(layer) for part in self.parts]
        self.check_attended()
        self._returned = torch.empty(0), torch.empty(0)
        return self._returned

    def attended(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Hand out what each part looks at; `key` and `value` are what a layer attends to."""
        returned, self._returned = self._returned, None
        if returned is None or key is not returned[0] or value is not returned[1]:
            raise ValueError("keys or values change between the cache and attention")
        return self.newest

    def check_attended(self) -> None:
        """Refuse a layer that attended without asking whose rows it sees."""
        if self._returned is not None:
            raise ValueError("a layer attends without the mask that it was given")

    @property
    def rows_of_parts(self) -> list[slice]:
        """The rows of each part among those of the pass that was announced."""
        assert self._step is not None, "begin() was not called"
        return self._step.rows_of_parts

    def get_seq_length(self, layer: int | None = None) -> int | Tensor:
        """Count the rows of the longest sequence, or what `KVCache` counts for a layer by name."""
        if layer is not None and self._step is not None:
            return self._step.ahead
        return max(int(part.get_seq_length()) for part in self.parts)


class JoinedMask(Tensor):
    """The masks of a joined pass, where layers take one: `attend` asks it for each part.

    It holds no numbers: a layer that reckons with masks itself fails on it, and never mixes
    sequences up.
    """

    step: JoinedStep
    masks: Sequence[Tensor | None]

    @staticmethod
    def of(step: JoinedStep, masks: Sequence[Tensor | None]) -> JoinedMask:
        """The masks of the parts of a pass."""
        made = torch.empty(0, device=step.positions.device).as_subclass(JoinedMask)
        made.step, made.masks = step, masks
        return made

    def parts(
        self, key: Tensor, value: Tensor
    ) -> Iterator[tuple[slice, Tensor, Tensor, Tensor | None]]:
        """Yield of each sequence its rows, the keys and values they look at, and their mask.

        `key` and `value` are what the layer attends to, which must be what the cache returned.
        """
        newest = self.step.cache.attended(key, value)
        for rows, (key, value), mask in zip(
            self.step.rows_of_parts, newest, self.masks, strict=True
        ):
            yield rows, key, value, mask


def slices(counts: Sequence[int]) -> list[slice]:
    """Make ranges of these sizes, one behind another."""
    ends = list(accumulate(counts))
    return [slice(end - n, end) for n, end in zip(counts, ends, strict=True)]
