"""Profiles: the parts of a step by time, and the memory that its passes read.

Forward passes are timed and their bytes counted where every strategy makes them: at the
model's `embed`, `run`, `logits`, `read`, which finds the likeliest tokens too, and
`pass_and_read`, which is all layers and that. A step has four parts: passes that draft, the rest
of drafting, the pass that verifies, and bookkeeping, which is all that is left. Rows that join
the pass that verifies are there to draft what follows, so that making them is drafting. Bytes are
the weights of the layers that ran and the cache rows that they looked at, read once per pass; of
experts those that a row of the pass chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ppdbench.decoding import passes
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Proposer
from ppdbench.engine.cache import KVCache
from ppdbench.engine.experts import Routed, bytes_touched, expert_bytes, watched
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock

T = TypeVar("T")


class PieceCall(NamedTuple):
    """One piece of a forward pass: when it began and ended, what it read, whether it drafted."""

    start: float
    end: float
    held: int
    drafts: bool
    routed: Sequence[Routed] = ()

    @property
    def bytes(self) -> int:
        """The bytes that it read in all."""
        return self.held + bytes_touched(self.routed)


@dataclass(slots=True)
class Meter:
    """Notes every piece of a forward pass while a method decodes."""

    model: StagedModel
    clock: Clock
    calls: list[PieceCall] = field(default_factory=list)
    joining: list[float] = field(default_factory=list)  # seconds, of what joins passes
    _start: float = 0.0
    _drafts: bool = False

    @contextmanager
    def over(self, decoder: Decoder) -> Iterator[None]:
        """Notes what `decoder` does; what was noted before is forgotten."""
        self.calls.clear()
        self.joining.clear()
        with ExitStack() as stack:
            for model in {id(m): m for m in (self.model, *_models(decoder))}.values():
                stack.enter_context(self._watched(model))
            if isinstance(decoder, Proposer):
                stack.enter_context(replaced(decoder, "propose", self._drafting))
                stack.enter_context(replaced(passes, "new_rows", self._joining))
            self.begin()
            yield

    def begin(self) -> None:
        """Note that decoding begins now; for whoever prepares more once the meter runs."""
        self._start = self.clock.now()

    @contextmanager
    def _watched(self, model: StagedModel) -> Iterator[None]:
        costs = Costs(model)
        with (
            watched(model) as routed,
            replaced(model, "run", lambda run: self._timed(run, costs.run, routed)),
            replaced(
                model, "pass_and_read", lambda run: self._timed(run, costs.pass_and_read, routed)
            ),
            replaced(model, "logits", lambda logits: self._timed(logits, costs.logits)),
            replaced(model, "read", lambda read: self._timed(read, costs.logits)),
            replaced(model, "embed", lambda embed: self._timed(embed, costs.embed)),
        ):
            yield

    def _timed(
        self, call: Callable[..., T], cost: Callable[..., int], routed: Sequence[Routed] = ()
    ) -> Callable[..., T]:
        # What the meter itself does counts as bookkeeping; so it does little.
        now, wait, note = self.clock.now, self.clock.synchronize, self.calls.append

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> T:
            wait()
            before, start = len(routed), now()
            out = call(*args, **kwargs)
            wait()
            note(PieceCall(start, now(), cost(*args), self._drafts, routed[before:]))
            return out

        return timed

    def _drafting(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(propose)
        def drafting(*args: Any, **kwargs: Any) -> Any:
            self._drafts = True
            try:
                return propose(*args, **kwargs)
            finally:
                self._drafts = False

        return drafting

    def _joining(self, make: Callable[..., T]) -> Callable[..., T]:
        @wraps(make)
        def joining(*args: Any) -> T:
            if self._drafts:  # a pass that drafts, whose time counts as that already
                return make(*args)
            self.clock.synchronize()
            start = self.clock.now()
            out = make(*args)
            self.clock.synchronize()
            self.joining.append(self.clock.now() - start)
            return out

        return joining

    def profile(self, decoded: Decoded) -> dict[str, float]:
        """The parts of all steps together, in ms, and the bytes that their passes read."""
        spent, drafted = sum(decoded.step_ms), sum(decoded.draft_ms)
        # The prefill, and whatever a strategy ran over the prompt, came first.
        steps = [c for c in self.calls if c.start >= self._start + decoded.prefill_ms / 1e3]
        draft, verify = [c for c in steps if c.drafts], [c for c in steps if not c.drafts]
        draft_pass, verify_pass = (
            1e3 * sum(c.end - c.start for c in some) for some in (draft, verify)
        )
        joining = 1e3 * sum(self.joining)
        return {
            "draft_pass_ms": draft_pass,
            "draft_ms": drafted - draft_pass + joining,
            "pass_ms": verify_pass,
            "bookkeeping_ms": spent - drafted - verify_pass - joining,
            "draft_pass_bytes": sum(c.bytes for c in draft),
            "pass_bytes": sum(c.bytes for c in verify),
        }


class Costs:
    """Bytes that the pieces of a pass over one model read, whichever experts it chooses."""

    def __init__(self, model: StagedModel) -> None:
        self._shape = model.cache_shape
        layers = [model.layer_bytes(i) - expert_bytes(model, i) for i in range(model.n_layers)]
        self._below = [0, *accumulate(layers)]  # bytes of the layers before each
        self._head = model.readout_bytes()

    def run(
        self, hidden: Tensor, start: int, stop: int, step: Step, cache: KVCache, **_: object
    ) -> int:
        """The weights of these layers, less experts, and the cache rows in sight."""
        seen = self._shape.seen_bytes(range(start, stop), step.key_length)
        return self._below[stop] - self._below[start] + seen

    def pass_and_read(
        self,
        hidden: Tensor,
        step: Step,
        cache: KVCache,
        tap: object,
        counts: object,
        last: int | None = None,
    ) -> int:
        """The same of all layers or of those before `last`, and what their readout reads."""
        last = len(self._below) - 1 if last is None else last
        return self.run(hidden, 0, last, step, cache) + self._head

    def logits(self, hidden: Tensor) -> int:
        """The weights of the norm and of the head."""
        return self._head

    def embed(self, tokens: Tensor, step: Step) -> int:
        """A few rows of a table, which count for nothing."""
        return 0


def _models(decoder: Decoder) -> Iterator[StagedModel]:
    """The models that a decoder holds, by themselves or in a session."""
    for held in vars(decoder).values():
        model = held.model if isinstance(held, Session) else held
        if isinstance(model, StagedModel):
            yield model


@contextmanager
def replaced(thing: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute of one object, changed for a while."""
    own = vars(thing)
    before = own.get(name)
    setattr(thing, name, change(getattr(thing, name)))
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            setattr(thing, name, before)
