"""Parts of a step while a batch is full: passes, drafting, and what surrounds them.

    python -m benchmarks.batch_steps [--model smollm2] [--dtype float32,bfloat16] [--batch 16]
        [--methods greedy prompt-lookup medusa] [--threads N] [--save FILE.json]

As many examples as there are places decode together, and what counts are the steps in which each
of them has a place and is past its first token. A step is the time until tokens are committed once
more: one pass over the rows of all, in the methods above. Every moment of it belongs to one part:

passes    the kernels of layers and readouts, or whole passes where they are not flat
drafting  what methods do to propose and to learn, the passes apart that they ask for
joining   finding whose turn it is, embedding, putting rows side by side and handing results out
rows      lists and tables that kernels take beside states: slots, owners, angles
loops     each sequence's own loop: acceptance, its cache, its limits, its records
counting  what a batch notes after each pass

All but the first two are bookkeeping. What the clock itself takes counts as that, too. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import msgspec
import torch

from benchmarks.curve import this_machine
from benchmarks.measured import carry_out
from ppdbench.bench.profile import replaced
from ppdbench.bench.runner import Choice
from ppdbench.decoding.batch import Batch, BatchRound
from ppdbench.decoding.decoder import Decoder, Proposer, Request, Setup
from ppdbench.engine.flat import native
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.machine import environment
from ppdbench.machine.clock import Clock
from ppdbench.report.sheet import Cell, Sheet, marked
from ppdbench.runs.workload import RunConfig, Workload, capacity, limits_of

FILES = "steps-"  # how the names of files begin
METHODS = ("greedy", "prompt-lookup", "medusa")
PASSES, DRAFTING, JOINING, ROWS, LOOPS, COUNTING = PARTS = (
    *("passes", "drafting", "joining", "rows", "loops", "counting"),
)
BOOKKEEPING = (JOINING, ROWS, LOOPS, COUNTING)
NOTES = (
    "ms: of a step, which ends when tokens are committed. Shares: of that time.",
    "joining: whose turn it is, rows embedded, put side by side and handed out; rows: what kernels "
    "take beside states; loops: acceptance, cache, limits, records; counting: after a pass.",
)

R = TypeVar("R")


class TimedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean time of each part of a step, in ms, over so many steps."""

    method: str
    dtype: str
    steps: int
    parts: dict[str, float]

    @property
    def ms(self) -> float:
        """The time of a step."""
        return sum(self.parts.values())

    def share(self, *names: str) -> float:
        """The share of some parts."""
        return sum(self.parts[name] for name in names) / self.ms


class MeasuredSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of methods in batches of one size, and the machine that they are from."""

    machine: str
    model: str
    batch: int
    threads: int
    steps: list[TimedStep]


@dataclass(slots=True)
class PartClock:
    """A clock of which one part runs at any time: calls stop the part that they interrupt.

    Whoever waits in a call for others is itself one of the interrupted: what they do meanwhile
    runs on their parts.
    """

    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    ends: list[dict[str, float]] = field(default_factory=list)
    part: str = COUNTING
    since: float = field(default_factory=perf_counter)

    def turn(self, part: str) -> str:
        """Let another part run from now on; the one that ran."""
        now, before = perf_counter(), self.part
        self.spent[before] += now - self.since
        self.part, self.since = part, now
        return before

    def during(self, part: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Make calls run on this part."""

        def changed(call: Callable[..., R]) -> Callable[..., R]:
            @wraps(call)
            def timed(*args: Any, **kwargs: Any) -> R:
                before = self.turn(part)
                try:
                    return call(*args, **kwargs)
                finally:
                    self.turn(before)

            return timed

        return changed

    def noting(self, call: Callable[[], None]) -> Callable[[], None]:
        """Make a call note what was spent by its time."""

        def noted() -> None:
            self.turn(self.part)
            self.ends.append(dict(self.spent))
            call()

        return noted

    @contextmanager
    def over(self, batch: Batch, decoders: Sequence[Decoder]) -> Iterator[None]:
        """Time what these decoders do in a batch."""
        flat = batch.setup.target.staged.flat is not None
        with ExitStack() as stack:
            for thing, name, part in (
                (MeetingPlace, "advance", JOINING),
                (MeetingPlace, "run", JOINING),
                (MeetingPlace, "read", JOINING),
                (MeetingPlace, "run_and_read", JOINING),
                (StagedModel, "pass_over", ROWS if flat else PASSES),
                (StagedModel, "pass_and_read", ROWS if flat else PASSES),
                (StagedModel, "read_out", ROWS if flat else PASSES),
                *([(native.loaded(), "run", PASSES)] if flat else []),
                *((each, "decode", LOOPS) for each in decoders),
                *(
                    (each, name, DRAFTING)
                    for each in decoders
                    if isinstance(each, Proposer)
                    for name in ("propose", "learn")
                ),
            ):
                stack.enter_context(replaced(thing, name, self.during(part)))
            stack.enter_context(replaced(batch.place, "end_round", self.noting))
            yield


def full_steps(clock: PartClock, rounds: Sequence[BatchRound], size: int) -> list[dict[str, float]]:
    """The parts of each step, in seconds, that all places took."""
    starts = [dict.fromkeys(PARTS, 0.0), *clock.ends]
    return [
        {part: end[part] - start[part] for part in PARTS}
        for start, end, each in zip(starts, clock.ends, rounds, strict=False)
        if each.live == size and not each.prompts
    ]


def measured(asked: argparse.Namespace) -> MeasuredSteps:
    """Measure each method in each number type."""
    machine = this_machine()
    environment.set_threads(asked.threads)
    found = [each for dtype in asked.dtype.split(",") for each in _of_type(asked, dtype)]
    return MeasuredSteps(
        machine=machine,
        model=Path(asked.model).name,
        batch=asked.batch,
        threads=torch.get_num_threads(),
        steps=found,
    )


def _of_type(asked: argparse.Namespace, dtype: str) -> Iterator[TimedStep]:
    config = RunConfig(
        model=ModelSpec(name=asked.model, dtype=dtype, device="cpu", offline=True),
        tasks=(asked.task,),
        data=asked.data,
        limit=asked.batch,
        max_new_tokens=asked.tokens,
    )
    work = Workload.read(config)
    loaded = load(config.model, context=work.context())
    items = work.encode(loaded)
    if len(items) < asked.batch:
        raise ConfigError(f"--batch {asked.batch}: {asked.task} has {len(items)} examples here")
    batch = Batch(Setup(loaded, capacity(items)))
    clock = Clock(loaded.staged.device)
    requests = [Request(list(i.ids), limits_of(i, loaded), clock) for i in items]
    for text in asked.methods:
        print(f"{asked.model}, {dtype}, {text}", file=sys.stderr, flush=True)
        choice = Choice.parse(text)
        decoders = batch.prepare(choice.build(asked.model)[1].prepare, asked.batch)
        yield _of_method(str(choice), dtype, batch, decoders, requests, asked.rounds)


def _of_method(
    method: str,
    dtype: str,
    batch: Batch,
    decoders: Sequence[Decoder],
    requests: Sequence[Request],
    rounds: int,
) -> TimedStep:
    """The parts of a step; the examples are decoded some times, and once before untimed."""
    steps: list[dict[str, float]] = []
    for number in range(1 + rounds):
        clock = PartClock()
        with clock.over(batch, decoders):
            for done in batch.decode(decoders, list(enumerate(requests))):
                if done.error is not None:
                    raise done.error
        steps += full_steps(clock, batch.rounds, len(decoders)) if number else []
    if not steps:
        raise ConfigError(f"{method}: no step with all places taken; use more --tokens")
    mean = {part: 1e3 * sum(step[part] for step in steps) / len(steps) for part in PARTS}
    return TimedStep(method=method, dtype=dtype, steps=len(steps), parts=mean)


def sheets(found: MeasuredSteps) -> list[Sheet]:
    """The table of all methods, with the machine below it."""
    columns = (*PARTS, "bookkeeping")
    rows: list[tuple[Cell, ...]] = [
        (s.method, s.dtype, s.ms, *(s.share(part) for part in PARTS), s.share(*BOOKKEEPING))
        for s in found.steps
    ]
    table = Sheet(
        f"Where a step goes: {found.model}, {found.batch} sequences, {found.threads} threads",
        ("method", "dtype", "ms", *columns),
        tuple(rows),
        notes=NOTES,
        digits={"ms": 2, **dict.fromkeys(columns, 1)},
        percent=frozenset(columns),
        spare=(COUNTING, ROWS),
    )
    return marked([table], found.machine)


def stored(path: Path) -> MeasuredSteps:
    """Read what `--save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=MeasuredSteps)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", default="reference")
    made.add_argument("--dtype", default="float32,bfloat16")
    made.add_argument("--methods", nargs="+", default=METHODS, help="as --method of bench")
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--task", default="gsm8k")
    made.add_argument("--data", default="builtin")
    made.add_argument("--tokens", type=int, default=48, help="of each output")
    made.add_argument("--rounds", type=int, default=3, help="over the examples")
    made.add_argument("--threads", type=int)
    made.add_argument("--save", type=Path, help="keep what was measured, as .json")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure, show, and keep what was asked for; an exit code."""
    asked = parser().parse_args(words)
    return carry_out("batch_steps", lambda: measured(asked), sheets, asked.save)


if __name__ == "__main__":
    sys.exit(main())
