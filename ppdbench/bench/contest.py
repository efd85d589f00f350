"""Methods and their baseline on one example after another, in turns, so that drift hits all.

The baseline runs twice: what it gains over itself is the noise of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ppdbench.bench.clock import Clock
from ppdbench.decoding.identity import Judgement, judge
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Decoded, autoregressive
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import Session
from ppdbench.errors import NumericalError, PpdbenchError
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one example: an output and its verdict, or an error."""

    verdict: Verdict
    decoded: Decoded | None = None
    reference: Decoded | None = None
    judgement: Judgement | None = None
    error: str | None = None


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
    ) -> None:
        self.loaded, self.contestants, self.setup = loaded, contestants, setup
        self.target, self.strict = target, strict
        rows = max([c.decoder.rows for c in contestants], default=1)
        self.session = Session(loaded.staged, setup.capacity, spare=rows)
        self._fixed: dict[int, Session] = {}
        if strict:
            for n in {c.decoder.rows for c in contestants}:
                self._fixed[n] = Session(loaded.staged, setup.capacity, spare=n, fixed_rows=n)

    def warm_up(self, item: Item, times: int) -> None:
        """Untimed runs, so that no method pays for what is done only once."""
        for _ in range(times):
            self.run(item, turn=0)

    def run(self, item: Item, *, turn: int) -> dict[str, Outcome]:
        """All outcomes of one example by label; `turn` decides who goes first."""
        decoded: dict[str, Decoded | str] = {}
        entries = [*BASELINE, *(c.label for c in self.contestants)]
        by_label = {c.label: c for c in self.contestants}
        start = turn % len(entries)
        for label in entries[start:] + entries[:start]:
            if label in BASELINE:
                decoded[label] = self._greedy(item, label, self.session)
            else:
                decoded[label] = self._attempt(item, by_label[label])
        outcomes = {}
        for label in BASELINE:
            baseline = decoded[label]
            assert isinstance(baseline, Decoded)
            outcomes[label] = Outcome("identical", baseline)
        fast = outcomes[BASELINE[0]].decoded
        assert fast is not None
        for contestant in self.contestants:
            outcomes[contestant.label] = self._outcome(
                item, contestant, decoded[contestant.label], fast
            )
        return outcomes

    def _attempt(self, item: Item, contestant: Contestant) -> Decoded | str:
        """An output, or what went wrong; other examples and methods go on."""
        chooser = self._chooser(item, contestant.label)
        session = self._session(contestant)
        try:
            return contestant.decoder.decode(
                session, list(item.ids), limits_of(item, self.loaded), self._clock(), chooser
            )
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
        session = self._session(contestant)
        reference = self._greedy(item, BASELINE[0], session) if self.strict else fast
        rounding = not self.strict or ours.trees
        judgement = judge(ours, reference, item.ids, self.session, rounding=rounding)
        if judgement.verdict != "identical" and not contestant.method.exact:
            return Outcome("inexact", ours, reference, judgement)
        return Outcome(judgement.verdict, ours, reference, judgement)

    def _session(self, contestant: Contestant) -> Session:
        return self._fixed[contestant.decoder.rows] if self.strict else self.session

    def _clock(self) -> Clock:
        return Clock(self.loaded.staged.device)

    def _chooser(self, item: Item, label: str) -> Chooser:
        if self.target.greedy:
            return Chooser(self.target)
        seeds = (item.task.name, item.example.id, label)
        return Chooser(self.target, generator_for(self.setup.seed, *seeds))


def limits_of(item: Item, loaded: Loaded) -> Limits:
    """What ends the output of an example."""
    return Limits(item.max_new_tokens, loaded.eos_ids, item.task.stop, loaded.tokenizer)
