"""The memory of a training run, known before its first step.

What stays is counted: the model, what is trained beside it, gradients and the optimizer's
moments. That needs no weights, since a model on the meta device has shapes and no memory. What
a step holds on its way is worked out from steps over a few short sequences, tensor by tensor.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ppdbench.engine.footprint import gb
from ppdbench.engine.placement import FreeMemory, name_of
from ppdbench.errors import ConfigError
from ppdbench.training.objective import Objective

ORDINARY = 3  # a token behind the special ones, in any vocabulary
GRADIENT, MOMENTS = 4, 8  # bytes for each number that is trained
LENGTHS = (16, 32, 64)  # tokens more than the shortest sequence that is like long ones
# Of one sequence some tensors are copied nowhere, since they lie as they would in the copy.
FEW, ONE_MORE = 2, 3  # sequences of a short step
LEAST_SEQUENCE = 32  # below this nobody is advised to go
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes of what stays from the first step to the last."""

    model: int
    added: int  # what is trained beside the model
    optimizer: int  # gradients and moments

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.model + self.added + self.optimizer


def held_by(model: Any, objective: Objective) -> HeldBytes:
    """Counted from the parameters, which may have no memory yet."""
    own = {id(p) for p in model.parameters()}
    parts = [*objective.parameters(), *objective.buffers()]
    trained = sum(p.numel() for p in objective.parameters() if p.requires_grad)
    return HeldBytes(
        model=sum(p.numel() * p.element_size() for p in model.parameters()),
        added=sum(p.numel() * p.element_size() for p in parts if id(p) not in own),
        optimizer=(GRADIENT + MOMENTS) * trained,
    )


@dataclass(frozen=True, slots=True)
class FreeRoom:
    """The free memory of a place for one of the processes that share it."""

    place: str
    free: int

    @classmethod
    def found(cls, device: torch.device) -> FreeRoom:
        """Find as much as there is now."""
        memory = FreeMemory.found(device)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
        return cls(name_of(memory.home), memory.free[memory.home] // processes)


def check_parts_fit(held: HeldBytes, room: FreeRoom) -> None:
    """Refuse parts that do not even fit while nothing runs, before any are made."""
    if held.total > room.free:
        raise ConfigError(
            f"training needs {_parts(held)} before any step; {room.place} has {gb(room.free)}: "
            "train fewer or smaller parts (see --layers, --heads, --rank) or use --dtype bfloat16"
        )


def _parts(held: HeldBytes) -> str:
    return (
        f"{gb(held.total)} (model {gb(held.model)}, what is trained beside it {gb(held.added)}, "
        f"gradients and optimizer {gb(held.optimizer)})"
    )


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The memory trace of one short step: `events` are numbers of tensors, ~n where n goes."""

    sequences: int
    tokens: int
    events: tuple[int, ...]
    sizes: tuple[int, ...]  # bytes by number


class StepMemory:
    """The memory that a step holds on its way, for any number of sequences of any length.

    A long step makes the same tensors in the same order as a short one. So the size of each is
    carried forward by itself: as a parabola in the tokens, and by what another sequence adds.
    What a step leaves behind are gradients, which are counted elsewhere.
    """

    def __init__(self, few: Sequence[StepTrace], more: StepTrace) -> None:
        """From steps of different lengths, and one of the first length over more sequences."""
        self._few, self._more = sorted(few, key=lambda diary: diary.tokens), more
        self.alike = len({len(diary.sizes) for diary in (*few, more)}) == 1
        longest = self._few[-1]
        gone = {~event for event in longest.events if event < 0}
        self._events = [e for e in longest.events if (e if e >= 0 else ~e) in gone]

    def bytes(self, sequences: int, tokens: int) -> int:
        """The most that is held at once."""
        sizes = self._sizes(sequences, tokens)
        held = most = 0
        for event in self._events:
            held += sizes[event] if event >= 0 else -sizes[~event]
            most = max(most, held)
        return most

    def _sizes(self, sequences: int, tokens: int) -> list[int]:
        longest, few = self._few[-1], self._few[0].sequences
        if not self.alike:
            share = sequences * tokens / (few * longest.tokens)  # too much for what does not grow
            return [int(size * share) for size in longest.sizes]
        more = (sequences - few) / (self._more.sequences - few)
        each = zip(*(diary.sizes for diary in self._few), strict=True)
        grown = [self._carried(sizes, tokens) for sizes in each]
        return [
            int(size * max(0.0, 1 + more * (wider / one - 1))) if one else 0
            for size, one, wider in zip(grown, self._few[0].sizes, self._more.sizes, strict=True)
        ]

    def _carried(self, sizes: Sequence[int], tokens: int) -> float:
        """Return the value on the parabola through three points; of one alone, its share."""
        if len(sizes) < len(LENGTHS):
            return sizes[-1] * tokens / self._few[-1].tokens
        (x0, x1, x2), (y0, y1, y2) = (diary.tokens for diary in self._few), sizes
        slope, before = (y2 - y1) / (x2 - x1), (y1 - y0) / (x1 - x0)
        bend = (slope - before) / (x2 - x0)
        return max(0.0, y2 + (tokens - x2) * (slope + bend * (tokens - x1)))


def measure_passes(
    objective: Objective, step: int, steps: int, sequence: int, precision: str
) -> StepMemory:
    """Measured by short steps that change nothing."""
    shortest = objective.shortest
    lengths = [shortest + more for more in LENGTHS if shortest + more < sequence]
    if len(lengths) < len(LENGTHS):
        lengths = [sequence]  # short enough to be measured itself
    mode = objective.training
    objective.eval()  # every sample passes every layer

    def diary(sequences: int, length: int) -> StepTrace:
        return kept_diary(objective, sequences, length, step, steps, precision)

    with torch.random.fork_rng():
        diary(FEW, lengths[0])  # what is made once is there afterwards
        few = [diary(FEW, length) for length in lengths]
        more = diary(ONE_MORE, lengths[0])
    objective.train(mode)
    return StepMemory(few, more)


def kept_diary(
    objective: Objective, rows: int, length: int, step: int, steps: int, precision: str
) -> StepTrace:
    """One step there and back over so many sequences."""
    device, low = next(objective.parameters()).device, LOW.get(precision)
    blocks = torch.full((rows, length + 1), ORDINARY, device=device)
    ledger = TensorLedger()
    with ledger, torch.compiler.set_stance("force_eager"):
        with torch.autocast(device.type, low, enabled=low is not None):
            loss = objective(blocks, step, steps)["loss"]
        loss.backward()
        del loss
    diary = StepTrace(rows, length, tuple(ledger.events), tuple(ledger.sizes))
    objective.zero_grad()
    return diary


class TensorLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the memory of all tensors that are made while it is in force."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events, self.sizes = list[int](), list[int]()
        self._known = set[int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, and take in what is new in its result."""
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given | self._known:
                self._take(storage)
        return result

    def _take(self, storage: torch.UntypedStorage) -> None:
        number, key = len(self.sizes), storage._cdata
        self.sizes.append(storage.nbytes())
        self.events.append(number)
        self._known.add(key)
        weakref.finalize(storage, self._give_back, key, number)

    def _give_back(self, key: int, number: int) -> None:
        self._known.discard(key)
        self.events.append(~number)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """All that a run takes, and what there is for it."""

    held: HeldBytes
    passes: Sequence[StepMemory]  # at several steps of the run
    sequences: int  # at once
    tokens: int  # of a sequence
    room: FreeRoom

    @property
    def passes_bytes(self) -> int:
        """The bytes of a step."""
        return self._passes(self.sequences, self.tokens)

    def _passes(self, sequences: int, tokens: int) -> int:
        return max(passes.bytes(sequences, tokens) for passes in self.passes)

    @property
    def total(self) -> int:
        """Everything at once."""
        return self.held.total + self.passes_bytes

    @property
    def short(self) -> str | None:
        """The reason why it does not fit, and what would; None where it does."""
        if self.total <= self.room.free:
            return None
        return (
            f"training needs {gb(self.total)}: {_parts(self.held)} and "
            f"{gb(self.passes_bytes)} for {self.sequences} sequences of {self.tokens} tokens at "
            f"once; {self.room.place} has {gb(self.room.free)}: {self._way_out()}"
        )

    def _way_out(self) -> str:
        left = self.room.free - self.held.total
        fewer = _largest(self.sequences, lambda n: self._passes(n, self.tokens) <= left)
        if fewer:
            return f"use --micro-batch {fewer}"
        shorter = _largest(self.tokens, lambda n: self._passes(1, n) <= left)
        if shorter >= LEAST_SEQUENCE:
            return f"use --micro-batch 1 --sequence {shorter}"
        return "train fewer or smaller parts (see --layers, --heads, --rank)"


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, where smaller ones do if it does; 0 if none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
