"""Several sequences decoded at once, each exactly as it would be alone.

Every sequence has its own slot: a session with a cache of its own, and a decoder with a state of
its own. Its loop is the ordinary one; what it asks of a model runs together with what the other
sequences ask (`engine/meeting.py`). A sequence that ends is replaced at once by the next request,
so that all slots are taken until the requests run out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, UnitError
from ppdbench.machine.clock import Clock

K = TypeVar("K", bound=Hashable)

# Prompts run apart: a piece beside the steps of others makes each of them longer and has its
# sequence wait for several. The one reading of the weights that it saves is little beside the rows
# of a piece.
APART = None


@dataclass(frozen=True, slots=True)
class Finished(Generic[K]):
    """A sequence that has ended: its output, or the error that it ended with.

    Times are in ms since the batch began: when it came to its slot, when its first token was
    there (0: never) and when it ended.
    """

    key: K
    slot: int
    began_ms: float
    first_token_ms: float
    ended_ms: float
    decoded: Decoded | None = None
    error: Exception | None = None

    @property
    def time_to_first_token_ms(self) -> float:
        """The time from its slot to its first token, waiting for others included."""
        return self.first_token_ms - self.began_ms


@dataclass(frozen=True, slots=True)
class BatchRound:
    """The time in which sequences that wait for one another commit tokens once more.

    `live` slots were taken, `prompts` of them by sequences without a token as yet; `tokens` were
    committed over all of them.
    """

    live: int
    prompts: int
    tokens: int


class PausedClock(Clock):
    """A clock that stands still while nobody decodes."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.device)
        self._clock, self._away, self._since = clock, 0.0, 0.0

    def synchronize(self) -> None:
        """Wait for everything queued on the device."""
        self._clock.synchronize()

    def now(self) -> float:
        """Seconds, without those of pauses."""
        return self._clock.now() - self._away

    def pause(self) -> None:
        """Stand still from now on."""
        self._since = self._clock.now()

    def go_on(self) -> None:
        """Run again."""
        self._away += self._clock.now() - self._since


@dataclass(slots=True)
class _Live(Generic[K]):
    """A sequence in its slot."""

    key: K
    prompt: int
    session: Session
    began: float
    first: float | None = None

    @property
    def committed(self) -> int:
        """The tokens of its output so far."""
        return len(self.session.tokens) - self.prompt


class Batch:
    """Slots in which sequences decode together, one method after another.

    `setup` is what strategies prepare for here. `prefill` is the number of rows of a prompt that
    run beside the others' steps, `APART` for prompts that run between them as a whole. `session`
    makes the session of a slot. `rounds` are those of the newest `decode`.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        prefill: int | None = APART,
        session: Callable[..., Session] = Session,
    ) -> None:
        if prefill is not None and prefill < 1:
            raise ConfigError(f"prompts in pieces of {prefill} tokens; use 1 or more")
        self.place = MeetingPlace(prefill)
        self.setup = setup.at_meeting(self.place)
        self.rounds: list[BatchRound] = []
        self.sessions: list[Session] = []
        self._session, self._spare = session, 0

    @property
    def why_apart(self) -> str | None:
        """Say why passes of a model ran one after another; None where they were joined."""
        return next(iter(self.place.unjoined.values()), None)

    def prepare(self, make: Callable[[Setup], Decoder], size: int) -> list[Decoder]:
        """Make a decoder for each of so many slots; what they load is loaded once."""
        if size < 1:
            raise ConfigError(f"a batch of {size} sequences; use 1 or more")
        first = make(self.setup)
        if first.alone is not None:
            first.close()
            raise ConfigError(f"no batches with this method: {first.alone}; leave --batch out")
        decoders = [first, *(make(self.setup) for _ in range(size - 1))]
        for each in decoders:
            each.begin()
        return decoders

    def reserve(self, size: int, spare: int) -> None:
        """Make room for so many sequences, with `spare` rows each for branches of trees."""
        if spare > self._spare:
            self.sessions.clear()
            self._spare = spare
        model, capacity = self.setup.target.staged, self.setup.capacity
        while len(self.sessions) < size:
            self.sessions.append(self._session(model, capacity, spare=self._spare))

    def decode(
        self,
        decoders: Sequence[Decoder],
        requests: Iterable[tuple[K, Request]],
        clock: Clock | None = None,
    ) -> Iterator[Finished[K]]:
        """Decode requests, as many at once as there are decoders; yield each when it has ended.

        Times are read from `clock`, not from those of requests, and stand still while who asked
        looks at what was yielded.
        """
        self.reserve(len(decoders), max(each.rows for each in decoders))
        clock = clock or Clock(self.setup.target.staged.device)
        run = _Run(self, decoders, iter(requests), PausedClock(clock))
        try:
            yield from run.all()
        finally:
            self.place.dismiss()


class _Run(Generic[K]):
    """One pass of a batch over its requests."""

    def __init__(
        self,
        batch: Batch,
        decoders: Sequence[Decoder],
        requests: Iterator[tuple[K, Request]],
        clock: PausedClock,
    ) -> None:
        self.batch, self.decoders, self.requests, self.clock = batch, decoders, requests, clock
        self.live: dict[int, _Live[K]] = {}
        self.finished: list[Finished[K]] = []
        self.begun = self.ended_tokens = 0
        # Of the newest round: tokens until then, slots taken since, and those without a token.
        self.counted = self.taken = self.waiting = 0
        clock.synchronize()
        self.began = clock.now()

    def all(self) -> Iterator[Finished[K]]:
        """Go on until the requests have run out."""
        place, rounds = self.batch.place, self.batch.rounds
        rounds.clear()
        for slot in range(len(self.decoders)):
            place.invite(lambda slot=slot: self._serve(slot))  # type: ignore[misc]
        while not place.is_over:
            self._go_on()
            self.clock.pause()
            yield from self.finished
            self.finished.clear()
            self.clock.go_on()

    @torch.inference_mode()
    def _go_on(self) -> None:
        """Go on until sequences have ended."""
        place, rounds = self.batch.place, self.batch.rounds
        while not self.finished and not place.is_over:
            place.advance()
            now = self._ms()
            if not rounds:
                self.taken = self.waiting = min(self.begun, len(self.decoders))
            committed = self.ended_tokens
            for each in self.live.values():
                own = each.committed
                committed += own
                if own and each.first is None:
                    each.first = now
            if committed > self.counted:
                rounds.append(BatchRound(self.taken, self.waiting, committed - self.counted))
                place.end_round()
                self.counted, self.taken = committed, len(self.live)
                self.waiting = sum(each.first is None for each in self.live.values())

    def _ms(self) -> float:
        return 1e3 * (self.clock.now() - self.began)

    def _serve(self, slot: int) -> None:
        """Decode one request after another in a slot."""
        session, decoder = self.batch.sessions[slot], self.decoders[slot]
        for key, request in self.requests:
            session.reset(request.prompt)
            session.watch = request.watch
            self.begun += 1
            live = self.live[slot] = _Live(key, len(request.prompt), session, self._ms())
            decoded, error = None, None
            try:
                decoded = decoder.decode(session, replace(request, clock=self.clock))
            except UnitError:
                raise  # what is to decode the others is gone
            except Exception as found:
                error = found
            del self.live[slot]
            self.ended_tokens += live.committed
            ended = self._ms()
            first = ended if live.first is None else live.first
            self.finished.append(Finished(key, slot, live.began, first, ended, decoded, error))
