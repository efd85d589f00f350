"""Rows of the table of goals, and helpers that several measurements need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.engine.loading import ModelSpec
from ppdbench.machine.clock import Clock
from ppdbench.runs.records import DecodedSample, Header
from ppdbench.runs.running import Destination
from ppdbench.runs.store import read_run
from ppdbench.stats import median

REFERENCE, SMALL, MIDDLE = "reference", "synthetic:llama-20m", "synthetic:llama-100m"
REAL = "smollm2"
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One row of the table: what, the goal as it is written, and every value measured.

    Without any the note says why there are none.
    """

    what: str
    goal: str
    values: Sequence[float]
    note: str = ""

    def cells(self) -> tuple[Any, ...]:
        """The median and the range."""
        if not self.values:
            return self.what, self.goal, None, None, None, self.note
        low, high = min(self.values), max(self.values)
        return self.what, self.goal, median(self.values), low, high, self.note


def decoded(
    chosen: Sequence[Choice],
    rounds: int,
    *,
    model: str = REFERENCE,
    dtype: str = "auto",
    tasks: Sequence[str] = ("xsum",),
    max_new_tokens: int | None = 64,
    profile: bool = False,
) -> tuple[Header, list[DecodedSample]]:
    """The header and the samples of a run of a model with these methods, in turns.

    Without `max_new_tokens` answers are as long as each task lets them be.
    """
    config = DecodeConfig(
        model=ModelSpec(name=model, dtype=dtype, device="cpu", offline=True),
        tasks=tuple(tasks),
        data="builtin",
        limit=max(5, rounds),
        max_new_tokens=max_new_tokens,
        methods=tuple(chosen),
        profile=profile,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run_decode(config, Destination(out=path), kind="bench")
        read = read_run(path)
        return read.header, [s for s in read.samples if isinstance(s, DecodedSample)]


def beside(
    what: str, goal: str, ours: Sequence[DecodedSample], theirs: Sequence[DecodedSample]
) -> TargetRow:
    """The steps of one method against those of another, example by example."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [sum(b.step_ms) / sum(a.step_ms) for a, b in pairs]
    verdicts = sorted({s.verdict for s in (*ours, *theirs)})
    return TargetRow(what, f"{goal} or more", ratios, ", ".join(verdicts))


def interleaved(
    work: Mapping[str, Callable[[], object]], rounds: int, clock: Clock
) -> dict[str, list[float]]:
    """Seconds per round of each, taking turns after one untimed round."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, call in work.items():
            start = clock.now()
            call()
            if number:
                times[name].append(clock.now() - start)
    return times


def over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratios round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def in_another_process(module: str, *words: str, **variables: str) -> Any:
    """Run a module by itself, where nothing that went before counts; the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    return json.loads(done.stdout.splitlines()[-1])
