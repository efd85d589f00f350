"""Methods and their baseline on one example after another, in turns, so that drift hits all.

The baseline runs twice: what it gains over itself is the noise of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor

from ppdbench.bench.full_batches import Place
from ppdbench.bench.profile import Meter
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.identity import (
    Again,
    Evidence,
    Judgement,
    as_run,
    as_verified,
    first_difference,
    judge,
    one_row_logits,
)
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.stock_check import (
    FIRST,
    MethodOutput,
    check_end_tokens,
    check_ends,
    check_greedy,
    hold_to_stock,
)
from ppdbench.decoding.written import visible_text
from ppdbench.engine.experts import Routed, by_rows, watched
from ppdbench.engine.loading import Loaded
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.session import Session
from ppdbench.engine.truth import StockTruth
from ppdbench.errors import NumericalError, PpdbenchError, UnitError
from ppdbench.machine.clock import Clock
from ppdbench.machine.cores import confined, share_out
from ppdbench.machine.environment import (
    forget_peak_memory,
    peak_memory_bytes,
    usable_cores,
)
from ppdbench.methods.base import Method, split_name
from ppdbench.runs.conversation import continued
from ppdbench.runs.workload import Item, limits_of

BASELINE = ("baseline", "baseline again")
IN_ONE_SHAPE = "baseline in one shape"  # what --strict compares with, where that is not the same
ResultVerdict = Literal["identical", "tie", "mismatch", "inexact", "sampled", "failed"]


@dataclass(frozen=True, slots=True)
class PreparedMethod:
    """A method that is ready to decode, under the name it has in this run."""

    label: str
    method: Method
    decoder: Decoder
    exits: Mapping[str, str] = field(default_factory=dict)
    """The layers that it exits after, where its options leave the choice to it."""
    slots: Sequence[Decoder] = ()
    """A decoder for each sequence that is decoded together; `decoder` is the first."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """The numbers that it chose by itself when the run was begun."""

    @property
    def size(self) -> int:
        """The number of sequences that it decodes together."""
        return max(1, len(self.slots))

    @property
    def used(self) -> dict[str, str]:
        """The values that stand for options which leave the choice to the method."""
        return {**self.exits, **self.decoder.used}

    @property
    def chosen(self) -> dict[str, int]:
        """The numbers that it chose for options which leave the choice to it."""
        return {**self.kept, **self.decoder.chosen}

    @property
    def exact(self) -> bool:
        """True if outputs must be greedy's: with these options, not just as a rule."""
        return self.method.exact and self.decoder.acceptance is None


@dataclass(frozen=True, slots=True)
class ExampleResult:
    """The result of one example: an output and its verdict, or an error."""

    verdict: ResultVerdict
    decoded: Decoded | None = None
    reference: Decoded | None = None
    judgement: Judgement | None = None
    error: str | None = None
    by_threads: dict[int, Decoded] = field(default_factory=dict)
    """Greedy decoding with fewer or more threads, beside methods that spread over units."""
    place: Place | None = None
    """Its place in a batch, where it had one."""
    alone: Decoded | None = None
    """Greedy decoding of the prompt alone, beside what came from a batch."""
    peak_memory_bytes: int = 0


class WallTime:
    """The time of one output, seen from outside: its parts must add up to it."""

    def __init__(self, clock: Clock, session: Session, most_rows: int) -> None:
        self._clock, self._session, self._most_rows = clock, session, most_rows
        self.routed: Sequence[Routed] = ()
        session.prompt_ms = 0.0  # of an engine that is not ours nothing is seen
        clock.synchronize()
        self._began = perf_counter()
        self.ms = 0.0

    def end(self) -> None:
        """Note the time at which the output is there."""
        self._clock.synchronize()
        self.ms = 1e3 * (perf_counter() - self._began)

    def over(self, decoded: Decoded) -> Decoded:
        """The output with what was seen from outside."""
        wall_ms = self.ms - decoded.aside_ms
        return replace(
            decoded,
            wall_ms=wall_ms,
            prompt_ms=self._session.prompt_ms,
            experts=by_rows(self.routed, self._most_rows),
        )


class Interleaved:
    """Every method and the baseline over the same buffers, one example at a time.

    Strict: no difference may come from rounding. Flat passes have that by themselves; elsewhere
    each method and a greedy reference of its own decode in one fixed shape. The baseline that
    times are compared with stays the fast one.
    """

    def __init__(
        self,
        loaded: Loaded,
        methods: Sequence[PreparedMethod],
        setup: Setup,
        target: Target,
        *,
        strict: bool = False,
        profile: bool = False,
    ) -> None:
        self.loaded, self.methods, self.setup = loaded, methods, setup
        self.target, self.strict = target, strict
        self._threads = torch.get_num_threads()
        rows = self._most_rows = max([c.decoder.rows for c in methods], default=1)
        self.session = Session(loaded.staged, setup.capacity, spare=rows)
        self._fixed: dict[int, Session] = {}
        self.meter = Meter(loaded.staged, self.clock()) if profile else None
        self._answered: tuple[Item, Decoded] | None = None
        # What the stock model says; it is there only while somebody asks.
        self._truth: StockTruth | None = None
        self.noise = 0.0
        self._watches: dict[str, LogitWatch] | None = None
        self._in_one_shape = strict and loaded.staged.flat is None
        if self._in_one_shape:
            for n in {c.decoder.rows for c in methods}:
                self._fixed[n] = Session(loaded.staged, setup.capacity, spare=n, fixed_rows=n)

    def warm_up(self, item: Item, times: int) -> None:
        """Untimed runs, so that no method pays for what is done only once."""
        for _ in range(times):
            self.run(item, turn=0)

    def hold(self, *items: Item) -> None:
        """Run examples untimed and refuse to go on if one is not what the stock model gives.

        A method whose output is a mismatch already is judged by that, and the others go on.
        Sampled tokens are not the likeliest, so that only logits are compared.
        """
        for item in items:
            self._compare(item, self._seen(item))
        self._truth = None

    def _seen(self, item: Item) -> list[MethodOutput]:
        """Every method's output over an example that is no mismatch, and what chose its tokens."""
        self._watches = {}
        try:
            outcomes = self.run(item, turn=0)
            watches = self._watches
        finally:
            self._watches = None
        exact = {BASELINE[0]} | {c.label for c in self.methods if c.exact}
        return [
            MethodOutput(label, decoded, watch, self.target.greedy and label in exact)
            for label, watch in watches.items()
            if label in outcomes
            and outcomes[label].verdict != "mismatch"
            and (decoded := outcomes[label].decoded) is not None
        ]

    def hold_outputs(self, item: Item, seen: Sequence[MethodOutput]) -> None:
        """Refuse to go on with outputs of an example that the stock model does not give."""
        self._compare(item, seen)
        self._truth = None

    def _compare(self, item: Item, seen: Sequence[MethodOutput]) -> None:
        check_end_tokens(self.loaded.eos_ids, self.stock().eos_ids)
        self.noise = max(self.noise, hold_to_stock(self.stock(), item.ids, seen))

    def check(self, item: Item, outputs: Mapping[str, Decoded]) -> None:
        """Refuse outputs that do not end where they should, and a baseline that drafts."""
        limits = limits_of(item, self.loaded)
        for label, decoded in outputs.items():
            check_ends(label, decoded, limits, self.loaded.eos_ids)
        for label in BASELINE:
            check_greedy(outputs[label])

    def stock(self) -> StockTruth:
        """The stock model, loaded for whoever asks first."""
        if self._truth is None:
            self._truth = StockTruth.load(self.loaded.spec)
        return self._truth

    def run(
        self, item: Item, *, turn: int, methods: Sequence[PreparedMethod] | None = None
    ) -> dict[str, ExampleResult]:
        """Decode one example with every method; outcomes by label. `turn` decides who goes first.

        With `methods` the others rest, as in a run that is resumed: each is paired
        with the baseline of its own turn, and with no other method.
        """
        taking_part = self.methods if methods is None else methods
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
        peak = peak_memory_bytes(self.loaded.staged.device)
        outcomes = {label: ExampleResult("identical", greedy[label]) for label in BASELINE}
        fast = greedy[BASELINE[0]]
        self._answered = item, fast
        made = {label: ours for label, ours in attempts.items() if isinstance(ours, Decoded)}
        self.check(item, {**{label: greedy[label] for label in BASELINE}, **made})
        by_threads = {self._threads: fast, **{n: greedy[n] for n in others}}
        for label, ours in attempts.items():
            method = by_label[label]
            wanted = unit_threads(method.decoder)
            outcomes[label] = replace(
                self.judged(item, method, ours, fast),
                by_threads={n: by_threads[n] for n in wanted},
                peak_memory_bytes=peak,
            )
        if self._watches is None:
            self.forget_truth()
        return outcomes

    def forget_truth(self) -> None:
        """Let go of the stock model, if somebody asked it: judging is no part of decoding."""
        if self._truth is not None:
            self._truth = None
            forget_peak_memory(self.loaded.staged.device)

    def reference(self, item: Item) -> Decoded:
        """Greedy decoding of one prompt alone."""
        return self._greedy(item, BASELINE[0], self.session)

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
        output = self._answered[1].output_ids
        answer = visible_text(self.loaded.tokenizer, before.ids, output, limits)
        return continued(item, before, answer, self.loaded.tokenizer)

    def _attempt(self, item: Item, method: PreparedMethod) -> Decoded | str:
        """An output, or what went wrong; other examples and methods go on."""
        request = self.request(item, method.label)
        session, decoder = self._session(method), method.decoder
        try:
            if self.meter is None or decoder.foreign or decoder.units > 1:
                with self._watched(method.label, session) as wall:
                    decoded = decoder.decode(session, request)
                return wall.over(decoded)
            with self.meter.over(decoder), self._watched(method.label, session) as wall:
                self.meter.begin()
                decoded = decoder.decode(session, request)
            return replace(wall.over(decoded), profile=self.meter.profile(decoded))
        except UnitError:
            raise  # what is to decode the other examples is gone
        except PpdbenchError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _greedy(self, item: Item, label: str, session: Session) -> Decoded:
        """The reference; without it there is nothing to compare with."""
        request = self.request(item, label)
        try:
            with self._watched(label, session) as wall:
                decoded = autoregressive(session, request)
            return wall.over(decoded)
        except NumericalError as error:
            raise NumericalError(f"example {item.example.id}: {error}") from error

    def judged(
        self,
        item: Item,
        method: PreparedMethod,
        ours: Decoded | str,
        fast: Decoded,
        made_again: Again | None = None,
    ) -> ExampleResult:
        """An output beside that of greedy decoding; `made_again` makes its passes once more."""
        if isinstance(ours, str):
            return ExampleResult("failed", error=ours)
        if not self.target.greedy:
            return ExampleResult("sampled", ours)
        decoder = method.decoder
        strict = self.strict and not decoder.foreign
        fixed = strict and self._in_one_shape
        session = self._session(method)
        # As many threads as its units have sum in the same order; others may round otherwise.
        with confined((), decoder.threads or self._threads):
            reference = self._greedy(item, IN_ONE_SHAPE, session) if fixed else fast
        if not method.exact:
            position = first_difference(ours.output_ids, reference.output_ids)
            if position is None:
                return ExampleResult("identical", ours, reference)
            return ExampleResult("inexact", ours, reference, Judgement("mismatch", position))
        evidence = Evidence(
            one_row=partial(
                one_row_logits, session if fixed else self.session, list(item.ids), reference
            ),
            as_run=made_again or partial(self._made_again, item, method, ours),
            truth=self.stock,
            noise=self.noise,
        )
        # In one shape the slots of a tree still change the order of sums.
        rounding = not strict or (fixed and ours.trees)
        judgement = judge(ours, reference, item.ids, evidence, rounding=rounding)
        return ExampleResult(judgement.verdict, ours, reference, judgement)

    def _made_again(
        self, item: Item, method: PreparedMethod, ours: Decoded, position: int
    ) -> Tensor | None:
        """The logits that chose a token, from the same passes made once more.

        Where another process made them, from passes of the same shapes in this one.
        """
        session, decoder = self._session(method), method.decoder
        if decoder.units > 1:
            with confined((), decoder.threads or self._threads):
                return as_verified(session, list(item.ids), ours, position)
        run = partial(decoder.decode, session, self.request(item, method.label))
        return as_run(run, session, ours, position)

    @contextmanager
    def _watched(self, label: str, session: Session) -> Iterator[WallTime]:
        """Time one output from outside, and let who wants to know see its logits."""
        if self._watches is not None:
            session.watch = self._watches[label] = LogitWatch(range(FIRST))
        with watched(session.model) as routed:
            wall = WallTime(self.clock(), session, self._most_rows)
            try:
                yield wall
            finally:
                wall.end()
                session.watch = None
                wall.routed = routed

    def _session(self, method: PreparedMethod) -> Session:
        return self._fixed[method.decoder.rows] if self._in_one_shape else self.session

    def clock(self) -> Clock:
        """A clock of the model's device."""
        return Clock(self.loaded.staged.device)

    def request(self, item: Item, label: str) -> Request:
        """Return the request to a method, or to greedy decoding; it draws from its own seed."""
        limits, chooser = limits_of(item, self.loaded), self._chooser(item, label)
        return Request(list(item.ids), limits, self.clock(), chooser)

    def _chooser(self, item: Item, label: str) -> Chooser:
        if self.target.greedy:
            return Chooser(self.target)
        # By the name alone: its label depends on which other methods the run has.
        seeds = (item.task.name, item.example.id, split_name(label)[0])
        return Chooser(self.target, generator_for(self.setup.seed, *seeds))


def unit_threads(decoder: Decoder) -> tuple[int, ...]:
    """The threads of one of its units and of all together; none where it is one process."""
    if decoder.units == 1:
        return ()
    return decoder.threads, min(decoder.threads * decoder.units, usable_cores())
