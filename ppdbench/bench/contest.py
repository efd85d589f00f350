"""Methods and their baseline on one example after another, in turns, so that drift hits all.

The baseline runs twice: what it gains over itself is the noise of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ppdbench.bench.clock import Clock
from ppdbench.bench.environment import usable_cores
from ppdbench.bench.profile import Meter
from ppdbench.conversation import continued
from ppdbench.decoding.identity import Judgement, judge
from ppdbench.decoding.limits import Limits, visible_text
from ppdbench.decoding.loop import Decoded, autoregressive
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import Session
from ppdbench.errors import NumericalError, PpdbenchError, UnitError
from ppdbench.pipeline.cores import confined, share_out
from ppdbench.strategies.base import Decoder, Method, Setup
from ppdbench.workload import Item

BASELINE = ("baseline", "baseline again")
Verdict = Literal["identical", "tie", "mismatch", "inexact", "sampled", "failed"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method that is ready to decode, under the name it has in this run."""

    label: str
    method: Method
    decoder: Decoder
    exits: Mapping[str, str] = field(default_factory=dict)
    """The layers that it exits after, where its options leave the choice to it."""

    @property
    def used(self) -> dict[str, str]:
        """What stands for options that leave the choice to the method."""
        return {**self.exits, **self.decoder.used}

    @property
    def exact(self) -> bool:
        """Whether outputs must be greedy's: with these options, not just as a rule."""
        return self.method.exact and self.decoder.acceptance is None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one example: an output and its verdict, or an error."""

    verdict: Verdict
    decoded: Decoded | None = None
    reference: Decoded | None = None
    judgement: Judgement | None = None
    error: str | None = None
    by_threads: dict[int, Decoded] = field(default_factory=dict)
    """Greedy decoding with fewer or more threads, beside methods that spread over units."""


class Contest:
    """Every method and the baseline over the same buffers, one example at a time.

    Strict: each method and a greedy reference of its own decode in one fixed shape. The
    baseline that times are compared with stays the fast one.
    """

    def __init__(
        self,
        loaded: Loaded,
        contestants: Sequence[Contestant],
        setup: Setup,
        target: Target,
        *,
        strict: bool = False,
        profile: bool = False,
    ) -> None:
        self.loaded, self.contestants, self.setup = loaded, contestants, setup
        self.target, self.strict = target, strict
        self._threads = torch.get_num_threads()
        rows = max([c.decoder.rows for c in contestants], default=1)
        self.session = Session(loaded.staged, setup.capacity, spare=rows)
        self._fixed: dict[int, Session] = {}
        self.meter = Meter(loaded.staged, self._clock()) if profile else None
        self._answered: tuple[Item, Decoded] | None = None
        if strict:
            for n in {c.decoder.rows for c in contestants}:
                self._fixed[n] = Session(loaded.staged, setup.capacity, spare=n, fixed_rows=n)

    def warm_up(self, item: Item, times: int) -> None:
        """Untimed runs, so that no method pays for what is done only once."""
        for _ in range(times):
            self.run(item, turn=0)

    def run(
        self, item: Item, *, turn: int, contestants: Sequence[Contestant] | None = None
    ) -> dict[str, Outcome]:
        """All outcomes of one example by label; `turn` decides who goes first.

        With some of the contestants the others rest, as a run does that goes on: each is paired
        with the baseline of its own turn, and with no other contestant.
        """
        taking_part = self.contestants if contestants is None else contestants
        by_label = {c.label: c for c in taking_part}
        others = {n for c in taking_part for n in unit_threads(c.decoder)} - {self._threads}
        entries: list[str | int] = [*BASELINE, *sorted(others), *by_label]
        greedy: dict[str | int, Decoded] = {}
        attempts: dict[str, Decoded | str] = {}
        start = turn % len(entries)
        for entry in entries[start:] + entries[:start]:
            if isinstance(entry, int):
                with confined(share_out(1, entry)[0], entry):
                    greedy[entry] = self._greedy(item, f"{entry} threads", self.session)
            elif entry in BASELINE:
                greedy[entry] = self._greedy(item, entry, self.session)
            else:
                attempts[entry] = self._attempt(item, by_label[entry])
        outcomes = {label: Outcome("identical", greedy[label]) for label in BASELINE}
        fast = greedy[BASELINE[0]]
        self._answered = item, fast
        by_threads = {self._threads: fast, **{n: greedy[n] for n in others}}
        for label, ours in attempts.items():
            contestant = by_label[label]
            wanted = unit_threads(contestant.decoder)
            outcomes[label] = replace(
                self._outcome(item, contestant, ours, fast),
                by_threads={n: by_threads[n] for n in wanted},
            )
        return outcomes

    def ready(self, item: Item) -> Item:
        """The item with its prompt: in a later turn that holds greedy's answers to the earlier.

        Every method is asked the same, and a run that goes on in the middle asks it again.
        """
        if item.after is None:
            return item
        before = self.ready(item.after)
        if self._answered is None or self._answered[0] != before:
            self._answered = before, self._greedy(before, BASELINE[0], self.session)
        limits = limits_of(before, self.loaded)
        answer = visible_text(self.loaded.tokenizer, self._answered[1].output_ids, limits)
        return continued(item, before, answer, self.loaded.tokenizer)

    def _attempt(self, item: Item, contestant: Contestant) -> Decoded | str:
        """An output, or what went wrong; other examples and methods go on."""
        chooser = self._chooser(item, contestant.label)
        session, decoder = self._session(contestant), contestant.decoder
        prompt, limits, clock = list(item.ids), limits_of(item, self.loaded), self._clock()
        try:
            if self.meter is None or decoder.foreign or decoder.units > 1:
                return decoder.decode(session, prompt, limits, clock, chooser)
            with self.meter.over(decoder):
                decoded = decoder.decode(session, prompt, limits, clock, chooser)
            return replace(decoded, profile=self.meter.profile(decoded))
        except UnitError:
            raise  # what is to decode the other examples is gone
        except PpdbenchError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _greedy(self, item: Item, label: str, session: Session) -> Decoded:
        """The reference; without it there is nothing to compare with."""
        chooser = self._chooser(item, label)
        limits = limits_of(item, self.loaded)
        try:
            return autoregressive(session, item.ids, limits, self._clock(), chooser)
        except NumericalError as error:
            raise NumericalError(f"example {item.example.id}: {error}") from error

    def _outcome(
        self, item: Item, contestant: Contestant, ours: Decoded | str, fast: Decoded
    ) -> Outcome:
        if isinstance(ours, str):
            return Outcome("failed", error=ours)
        if not self.target.greedy:
            return Outcome("sampled", ours)
        decoder = contestant.decoder
        fixed = self.strict and not decoder.foreign
        session = self._session(contestant)
        # As many threads as its units have sum in the same order; others may round otherwise.
        with confined((), decoder.threads or self._threads):
            reference = self._greedy(item, BASELINE[0], session) if fixed else fast
        judgement = judge(
            ours,
            reference,
            item.ids,
            self.session,
            rounding=not fixed or ours.trees,
            replay=partial(self._made_again, decoder),
        )
        if judgement.verdict != "identical" and not contestant.exact:
            return Outcome("inexact", ours, reference, judgement)
        return Outcome(judgement.verdict, ours, reference, judgement)

    def _made_again(
        self, decoder: Decoder, session: Session, prompt: list[int], ours: Decoded, position: int
    ) -> Tensor:
        """The logits that chose a token, with the threads that the decoder had."""
        with confined((), decoder.threads or self._threads):
            return decoder.replay(session, prompt, ours, position)

    def _session(self, contestant: Contestant) -> Session:
        return self._fixed[contestant.decoder.rows] if self.strict else self.session

    def _clock(self) -> Clock:
        return Clock(self.loaded.staged.device)

    def _chooser(self, item: Item, label: str) -> Chooser:
        if self.target.greedy:
            return Chooser(self.target)
        seeds = (item.task.name, item.example.id, label)
        return Chooser(self.target, generator_for(self.setup.seed, *seeds))


def unit_threads(decoder: Decoder) -> tuple[int, ...]:
    """The threads of one of its units and of all together; none where it is one process."""
    if decoder.units == 1:
        return ()
    return decoder.threads, min(decoder.threads * decoder.units, usable_cores())


def limits_of(item: Item, loaded: Loaded) -> Limits:
    """What ends the output of an example."""
    return Limits(item.max_new_tokens, loaded.eos_ids, item.task.stop, loaded.tokenizer)
