"""Decoders: what decodes one prompt after another, and what it is made ready for.

Nothing here loads torch, so that listing methods and their options stays instant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.decoded import Decoded
    from ppdbench.decoding.draft import Draft
    from ppdbench.decoding.limits import Limits
    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.decoding.sampling import Chooser
    from ppdbench.decoding.stock import StockModel
    from ppdbench.decoding.verify import Acceptance
    from ppdbench.engine.loading import Loaded, ModelSpec
    from ppdbench.engine.logit_watch import LogitWatch
    from ppdbench.engine.session import Session
    from ppdbench.engine.staged import Meeting
    from ppdbench.engine.truth import TokenLine
    from ppdbench.machine.clock import Clock


P = TypeVar("P")


def _at_meeting(loaded: Loaded, meeting: Meeting) -> Loaded:
    """A model whose passes wait for those of other sequences."""
    from ppdbench.engine.staged import at_meeting

    return dataclasses.replace(loaded, staged=at_meeting(loaded.staged, meeting))


def _greedily() -> Chooser:
    from ppdbench.decoding.sampling import GREEDY

    return GREEDY


@dataclass(frozen=True, slots=True)
class Setup:
    """The setting a strategy prepares for: the model, the longest sequence, the run's seed."""

    target: Loaded
    capacity: int
    seed: int = 0
    others: dict[ModelSpec, Loaded] = dataclasses.field(default_factory=dict, repr=False)
    """Further models that strategies asked for, so that several share one."""
    stocks: dict[str | None, StockModel] = dataclasses.field(default_factory=dict, repr=False)
    """Models as transformers runs them by name, the target without one."""
    parts: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)
    """Parts that strategies read or built, so that the decoders of a batch share them."""
    meeting: Meeting | None = dataclasses.field(default=None, repr=False)
    """The place where sequences that are decoded together ask for passes of any model."""

    def load(self, spec: ModelSpec) -> Loaded:
        """Another model than the target, loaded once per run."""
        from ppdbench.engine.loading import load

        if spec not in self.others:
            self.others[spec] = load(spec, context=self.capacity)
        found, meeting = self.others[spec], self.meeting
        if meeting is None:
            return found
        return self.part(("model", spec), lambda: _at_meeting(found, meeting))

    def at_meeting(self, meeting: Meeting) -> Setup:
        """The same for sequences that are decoded together: what is loaded already is shared."""
        target = _at_meeting(self.target, meeting)
        return dataclasses.replace(self, target=target, parts={}, meeting=meeting)

    def part(self, key: object, make: Callable[[], P]) -> P:
        """A part that all sequences of a batch share: made once, changed by nobody."""
        if key not in self.parts:
            self.parts[key] = make()
        found: P = self.parts[key]
        return found

    def stock(self, name: str | None = None) -> StockModel:
        """The target, or another model, as transformers runs it; loaded once per run."""
        from ppdbench.decoding.stock import StockModel

        if name not in self.stocks:
            if name is None:
                self.stocks[name] = StockModel.beside(self.target)
            else:
                spec = dataclasses.replace(self.target.spec, name=name, revision=None, adapter=None)
                self.stocks[name] = StockModel.load(spec)
        return self.stocks[name]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a decoder: the output of one prompt.

    `chooser` picks each token, the likeliest where nothing else is said; times are read from
    `clock`. In a batch `watch` sees the logits of this sequence.
    """

    prompt: list[int]
    limits: Limits
    clock: Clock
    chooser: Chooser = dataclasses.field(default_factory=_greedily)
    watch: LogitWatch | None = None


class Decoder:
    """Decodes one prompt after another.

    `rows` is the most query rows that a pass after the prefill has, `trees` says that passes may
    branch. `loaded` says what else was read, with fingerprints, and `facts` what was found out
    about it, both for the header of the run. `used` says what options came to that leave the
    choice to the method, in words, and `chosen` the numbers that were chosen for them, which
    whoever goes on with a run keeps.
    `units` processes of `threads` threads each decode together (0: as many as the run has).
    One that does not say that it `knows_text` cannot make tokens less likely for standing in it.
    `acceptance`, where there is one, keeps tokens that greedy decoding would not give. A
    `foreign` decoder is greedy decoding by an engine that is not ours: it draws no tokens, and
    `--strict` cannot fix the shapes of its passes. `alone` says why it cannot decode a sequence
    beside others, where it cannot.
    """

    rows: int = 1
    trees: bool = False
    loaded: Mapping[str, str] = MappingProxyType({})
    facts: Mapping[str, Any] = MappingProxyType({})
    used: Mapping[str, str] = MappingProxyType({})
    chosen: Mapping[str, int] = MappingProxyType({})
    units: int = 1
    threads: int = 0
    acceptance: Acceptance | None = None
    foreign: bool = False
    knows_text: bool = True
    alone: str | None = None

    def begin(self) -> None:
        """The models are as they will run, captured or not: start what decodes beside this."""

    def decode(self, session: Session, request: Request) -> Decoded:
        """Tokens of one prompt, step by step."""
        raise NotImplementedError

    def close(self) -> None:
        """The run is over: end what was started for it."""


class Proposer(Decoder):
    """A decoder that only proposes; the loop verifies and commits, so outputs are exact.

    `taps` names the layers, as numbers of layers run, whose outputs it wants to see.
    """

    taps: tuple[int, ...] = ()

    def start(self, session: Session, prefill: Prefill) -> None:
        """A new sequence, its prompt run and its first token chosen: forget all others."""

    def propose(self, session: Session, room: int) -> Draft:
        """Return tokens that may follow `session.tokens`; none deeper than `room` is committed."""
        raise NotImplementedError

    def learn(self, session: Session, verified: Verified) -> None:
        """Take note of what became of a draft; `session.tokens` already holds what was committed.

        The draft may be shorter than what was proposed, and empty at the end of an output.
        """

    def decode(self, session: Session, request: Request) -> Decoded:
        """Propose, verify, commit."""
        from ppdbench.decoding.loop import speculative

        return speculative(session, self, request)


@runtime_checkable
class Padding(Protocol):
    """A decoder of another engine that takes several prompts at once, padded to one length."""

    def decode_together(
        self, requests: Sequence[Request], watches: Sequence[LogitWatch | None]
    ) -> list[Decoded]:
        """The outputs of some prompts that begin together."""
        ...


@runtime_checkable
class Guesser(Protocol):
    """A decoder that says what it would guess at any place of a text, as `probe` asks."""

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        """Scores [position, distance, vocab] given the text up to each position.

        Distance 1 is the token after the model's own next one.
        """
        ...


@runtime_checkable
class Joining(Protocol):
    """A guesser that puts rows of its own behind the tokens of a text, up to `farthest` ahead."""

    farthest: int

    def lines(
        self, session: Session, text: list[int], places: Sequence[int]
    ) -> Iterator[TokenLine]:
        """Yield each of those rows behind some places with all it sees, for the stock model."""
        ...


@runtime_checkable
class Transferring(Protocol):
    """A guesser that puts pseudo states of tokens to come among the states of a text."""

    @property
    def transferred_at(self) -> Sequence[int]:
        """The number of layers that have run where the pseudo state of each step is put in."""
        ...

    def read(self, session: Session, text: list[int]) -> dict[int, Tensor]:
        """Run a text; its states by layers run."""
        ...

    def portions(
        self, session: Session, text: list[int], places: Sequence[int]
    ) -> Iterator[Sequence[int]]:
        """Yield as many of the places at a time as the cache has rows for behind a text."""
        ...

    def passed(
        self, session: Session, states: Mapping[int, Tensor], length: int, places: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return all pseudo states behind some places, [1, step * place, hidden] by layers run."""
        ...
