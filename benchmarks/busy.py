"""Speed on a machine that is not quiet: greedy decoding with busy programs beside it, and without.

    python -m benchmarks.busy [--model reference] [--dtype float32,bfloat16] [--programs 4]
        [--threads N] [--rounds 5] [--tokens 64] [--save FILE.json]

Threads that wait for each other lose more to other programs than their share of the processor:
each of them waits for whichever was put aside. Our greedy decoding and `generate()` take turns,
with other programs stopped and then running, in every round. Run it on a machine that does nothing
else: its own programs are the load.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import torch

from benchmarks.curve import this_machine
from benchmarks.measured import carry_out
from ppdbench.bench.baseline import compare
from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.machine import environment
from ppdbench.report.sheet import Cell, Sheet, marked
from ppdbench.stats import median
from ppdbench.tasks.passages import pseudo_prompts

FILE = "busy.json"  # under results/readme
BUSY = "while True: pass"
PROMPT = 32


class BusyRound(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second of both, alone and with other programs at work."""

    greedy_alone: float
    greedy_beside: float
    generate_alone: float
    generate_beside: float


class BusyModel(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of a model in one number type, and the kernels that ran."""

    model: str
    dtype: str
    passes: str
    rounds: list[BusyRound]


class MeasuredBusy(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of models with so many programs beside them, and the machine."""

    machine: str
    threads: int
    programs: int
    models: list[BusyModel]


@contextmanager
def programs(count: int) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """Programs that would keep a core busy each, stopped until they are let run."""
    with ExitStack() as stack:
        begun = []
        for _ in range(count):
            each = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(each.wait)
            stack.callback(each.kill)
            each.send_signal(signal.SIGSTOP)
            begun.append(each)
        yield begun


@contextmanager
def running(held: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Let stopped programs run for a while."""
    for each in held:
        each.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        for each in held:
            each.send_signal(signal.SIGSTOP)


def measured(asked: argparse.Namespace) -> MeasuredBusy:
    """Measure each number type."""
    machine = this_machine()
    environment.set_threads(asked.threads)
    with programs(asked.programs) as held:
        models = [_of_type(asked, dtype, held) for dtype in asked.dtype.split(",")]
    return MeasuredBusy(
        machine=machine, threads=torch.get_num_threads(), programs=asked.programs, models=models
    )


def _of_type(
    asked: argparse.Namespace, dtype: str, held: Sequence[subprocess.Popen[bytes]]
) -> BusyModel:
    loaded = load(ModelSpec(name=asked.model, dtype=dtype, device="cpu", offline=True))
    prompts = pseudo_prompts(loaded.tokenizer, 1, PROMPT)
    stock = Setup(loaded, PROMPT + asked.tokens).stock()
    rounds = []
    for number in range(asked.rounds):
        print(f"{asked.model}, {dtype}, round {number + 1}", file=sys.stderr, flush=True)
        times = []
        for beside in ((), held):
            with running(beside):
                found = compare(
                    *(loaded, stock),
                    prompts=prompts,
                    new_tokens=asked.tokens,
                    rounds=1,
                    bandwidth=1.0,
                )
            times.append((found.greedy_tokens_per_s, found.generate_tokens_per_s))
        (greedy, generate), (greedy_beside, generate_beside) = times
        rounds.append(
            BusyRound(
                greedy_alone=greedy,
                greedy_beside=greedy_beside,
                generate_alone=generate,
                generate_beside=generate_beside,
            )
        )
    kernels = loaded.staged.path.kernels
    return BusyModel(model=Path(asked.model).name, dtype=str(dtype), passes=kernels, rounds=rounds)


def sheets(found: MeasuredBusy) -> list[Sheet]:
    """The table of all models, with the machine below it."""
    rows: list[tuple[Cell, ...]] = []
    for each in found.models:
        ours = [(r.greedy_alone, r.greedy_beside) for r in each.rounds]
        theirs = [(r.generate_alone, r.generate_beside) for r in each.rounds]
        for what, speeds in ((f"greedy, {each.passes}", ours), ("generate()", theirs)):
            alone, slowed = (median(list(some)) for some in zip(*speeds, strict=True))
            kept = median([there / without for without, there in speeds])
            rows.append((each.model, each.dtype, what, alone, slowed, kept))
    beside = f"beside {found.programs} programs"
    table = Sheet(
        f"Tokens per second {beside}, {found.threads} threads",
        ("model", "dtype", "what", "alone", beside, "kept"),
        tuple(rows),
        notes=("Medians of rounds; kept: of the speed alone, round by round.",),
        digits={"alone": 1, beside: 1, "kept": 1},
        percent=frozenset({"kept"}),
    )
    return marked([table], found.machine)


def stored(path: Path) -> MeasuredBusy:
    """Read what `--save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=MeasuredBusy)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", default="reference")
    made.add_argument("--dtype", default="float32,bfloat16")
    made.add_argument("--programs", type=int, default=4)
    made.add_argument("--threads", type=int)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--tokens", type=int, default=64, help="of each output")
    made.add_argument("--save", type=Path, help="keep what was measured, as .json")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure, show, and keep what was asked for; an exit code."""
    asked = parser().parse_args(words)
    return carry_out("busy", lambda: measured(asked), sheets, asked.save)


if __name__ == "__main__":
    sys.exit(main())
