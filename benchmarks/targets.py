"""This tool's speed beside transformers and beside the memory's speed, in one table.

    python -m benchmarks.targets [--only baseline,strategies,...] [--threads 2]

Everything that is compared runs in one process, in turns; ratios are medians of rounds or of
examples, with the smallest and largest of them. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ppdbench.bench.baseline import bytes_per_token, compare_with_generate
from ppdbench.bench.choices import with_peers
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.bench.summary import overall, summarize
from ppdbench.bench.sums import add_up
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Target, generator_for
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.machine.clock import Clock
from ppdbench.machine.environment import forget_peak_memory, set_threads
from ppdbench.probe.match import Prober
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet
from ppdbench.runs.records import DecodedSample, Header
from ppdbench.runs.running import Destination
from ppdbench.runs.store import read_run
from ppdbench.stats import median
from ppdbench.tasks.passages import pseudo_prompts

TINY = "synthetic:layers=1,hidden=64"
REFERENCE, SMALL, MIDDLE = "reference", "synthetic:llama-20m", "synthetic:llama-100m"
OURS = ("greedy", "layerskip:exit_layer=2", "prompt-lookup", "draft-verify", "lookahead")
TREES = (
    "rest:datastore=reference",
    "medusa",
    "hidden-transfer",
    "prompt-tokens",
    "eagle:nodes=12,top_k=4",
)
MOST_BOOKKEEPING = 0.03
# A real model, and what needs no training for it.
REAL = "smollm2"
FREE = (
    *("greedy", "prompt-lookup", "lookahead", "rest:datastore=smollm2", "jacobi"),
    *("layerskip", "draft-verify"),
)
TASKS = ("gsm8k", "xsum", "humaneval", "mt_bench")
ENOUGH = 3  # methods of these that are to gain
PAIRS = {
    "greedy": "transformers:greedy",
    "layerskip:exit_layer=2": "transformers:early-exit",
    "prompt-lookup": "transformers:prompt-lookup",
}


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One row of the table: what, the goal as it is written, and every value measured."""

    what: str
    goal: str
    values: Sequence[float]
    note: str = ""

    def cells(self) -> tuple[Any, ...]:
        """The median and the range."""
        low, high = min(self.values), max(self.values)
        return self.what, self.goal, median(self.values), low, high, self.note


def baseline(rounds: int) -> Iterator[TargetRow]:
    """Greedy against `generate()`, and against the bandwidth."""
    for name in (REFERENCE, SMALL, MIDDLE):
        report = compare_with_generate(
            ModelSpec(name=name, dtype="float32", device="cpu"),
            prompts=lambda tokenizer: pseudo_prompts(tokenizer, 2, 64),
            new_tokens=128 if name != MIDDLE else 48,
            rounds=rounds,
        )
        note = f"{report.path.kernels}, {report.identical}/{report.prompts} identical"
        if name != MIDDLE:
            ratios = [r.ratio for r in report.rounds]
            yield TargetRow(f"greedy / generate(), {name}", "2.0 or more", ratios, note)
        else:
            steps = report.prompts * (report.new_tokens - 1)
            read = report.bytes_per_token * steps / report.bandwidth_bytes_per_s
            fractions = [read / r.greedy_decode_s for r in report.rounds]
            yield TargetRow(
                f"greedy, fraction of bandwidth, {name}", "0.75 or more", fractions, note
            )


def strategies(rounds: int) -> Iterator[TargetRow]:
    """Our methods against their counterparts."""
    chosen, _ = with_peers(list(map(Choice.parse, OURS)), REFERENCE)
    _, samples = decoded(chosen, rounds)
    by_label: dict[str, list[DecodedSample]] = {}
    for sample in samples:
        by_label.setdefault(sample.method, []).append(sample)
    for mine, theirs in PAIRS.items():
        label = mine if mine in by_label else mine.partition(":")[0]
        goal = {"greedy": "2.0", "prompt-lookup": "1.6"}.get(mine, "2.0")
        yield beside(f"{label} / {theirs}, steps", goal, by_label[label], by_label[theirs])


def beside(
    what: str, goal: str, ours: Sequence[DecodedSample], theirs: Sequence[DecodedSample]
) -> TargetRow:
    """The steps of one method against those of another, example by example."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [sum(b.step_ms) / sum(a.step_ms) for a, b in pairs]
    verdicts = sorted({s.verdict for s in (*ours, *theirs)})
    return TargetRow(what, f"{goal} or more", ratios, ", ".join(verdicts))


def speculation(rounds: int) -> Iterator[TargetRow]:
    """Yield what pays on a real model without training, all tasks together, in both types.

    Of a speedup over greedy the median is that over all examples, the range its interval.
    """
    peer = PAIRS["prompt-lookup"]
    chosen = list(map(Choice.parse, (*FREE, peer)))
    for dtype in ("float32", "bfloat16"):
        header, samples = decoded(chosen, rounds, model=REAL, dtype=dtype, tasks=TASKS)
        own = [s for s in samples if s.method == "prompt-lookup"]
        gains = {
            row["label"]: (row["speedup_low"], row["speedup"], row["speedup_high"])
            for row in overall(header, add_up(samples))
            if row["speedup"] is not None and row["label"] not in ("greedy", peer)
        }
        for label in sorted(gains, key=lambda each: -gains[each][0]):
            goal = "1.3 or more" if label == "prompt-lookup" else f"{ENOUGH} above 1.0"
            yield TargetRow(f"{label} / greedy, {REAL}, {dtype}", goal, gains[label])
        what = f"prompt-lookup / {peer}, {REAL}, {dtype}"
        yield beside(what, "2.5", own, [s for s in samples if s.method == peer])


def bookkeeping(rounds: int) -> Iterator[TargetRow]:
    """Yield the time spent on bookkeeping, in chains and trees."""
    chosen = list(map(Choice.parse, (*OURS, *TREES)))
    header, samples = decoded(chosen, rounds, profile=True)
    summaries = summarize(header, add_up(samples), scores=False)
    shares = {s["label"]: s["profile"]["bookkeeping_share"] for s in summaries}
    over = [label for label, share in shares.items() if share > MOST_BOOKKEEPING]
    listed = " ".join(f"{label} {shares[label]:.3f}" for label in over)
    note = f"over: {listed}" if over else ""
    goal = f"{MOST_BOOKKEEPING} or less"
    yield TargetRow("bookkeeping, share of a step", goal, list(shares.values()), note)


def decoded(
    chosen: Sequence[Choice],
    rounds: int,
    *,
    model: str = REFERENCE,
    dtype: str = "auto",
    tasks: Sequence[str] = ("xsum",),
    profile: bool = False,
) -> tuple[Header, list[DecodedSample]]:
    """The header and the samples of a run of a model with these methods, in turns."""
    config = DecodeConfig(
        model=ModelSpec(name=model, dtype=dtype, device="cpu", offline=True),
        tasks=tuple(tasks),
        data="builtin",
        limit=max(5, rounds),
        max_new_tokens=64,
        methods=tuple(chosen),
        profile=profile,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run_decode(config, Destination(out=path), kind="bench")
        read = read_run(path)
        return read.header, [s for s in read.samples if isinstance(s, DecodedSample)]


def probing(rounds: int) -> Iterator[TargetRow]:
    """Probing every layer against plain greedy decoding, one by one and in a batch."""
    loaded = load(ModelSpec(name=REFERENCE, device="cpu"))
    n, prompts = 64, pseudo_prompts(loaded.tokenizer, 8, 64)
    layers, clock = range(1, loaded.staged.n_layers + 1), Clock(loaded.staged.device)
    session = Session(loaded.staged, 64 + n)
    alone, together = (Prober(loaded, layers, 64 + n) for _ in range(2))
    target = Target()

    def draws(k: int) -> list[torch.Generator]:
        return [generator_for(0, str(i)) for i in range(k)]

    work: dict[str, Callable[[], object]] = {
        "greedy": lambda: [
            autoregressive(session, Request(p, Limits(n), clock)) for p in prompts[:2]
        ],
        "alone": lambda: [alone.probe([p], n, target, draws(1)) for p in prompts[:2]],
        "together": lambda: together.probe(prompts, n, target, draws(8)),
    }
    each = {"greedy": 2, "alone": 2, "together": 8}
    times = interleaved(work, rounds, clock)
    per = {name: [t / each[name] for t in taken] for name, taken in times.items()}
    yield TargetRow(
        "probing all layers / greedy", "1.10 or less", over(per["alone"], per["greedy"])
    )
    what = "probing one by one / in a batch of 8"
    yield TargetRow(what, "4.0 or more", over(per["alone"], per["together"]))


def growth(rounds: int) -> Iterator[TargetRow]:
    """Time per token with 2k of context over that with 128, against the bytes moved."""
    loaded = load(ModelSpec(name=SMALL, dtype="float32", device="cpu"))
    clock, n = Clock(loaded.staged.device), 16
    long, short = pseudo_prompts(loaded.tokenizer, 1, 2048 - n) + pseudo_prompts(
        loaded.tokenizer, 1, 128 - n
    )
    session = Session(loaded.staged, 2048)

    def step_s(prompt: list[int]) -> float:
        return median(autoregressive(session, Request(prompt, Limits(n), clock)).step_ms) / 1e3

    moved = bytes_per_token(loaded.staged, [len(long)], n) / bytes_per_token(
        loaded.staged, [len(short)], n
    )
    step_s(short)
    ratios = [step_s(long) / step_s(short) / moved for _ in range(rounds)]
    what = "growth of time over growth of bytes, 2k / 128"
    yield TargetRow(what, "1.3 or less", ratios, f"bytes grow {moved:.2f}x")


def memory(_: int) -> Iterator[TargetRow]:
    """Yield the most memory held beyond weights and cache while decoding, over both.

    The libraries' own code is apart: it is the same for every model, and whoever has Python and
    transformers open has it already. It is loaded by running the smallest of models first.
    Weights count once, as they are stored: a second copy of any is beyond them.
    """
    run_once(TINY)
    gc.collect()
    before = resident()
    loaded, session = run_once(MIDDLE)
    held = loaded.staged.parameters * loaded.staged.dtype.itemsize + session.cache.nbytes
    extra = (resident("VmHWM") - before) / held - 1
    what = f"peak memory over weights and KV, {MIDDLE}"
    yield TargetRow(what, "0.15 or less", [extra], f"libraries hold {before / 1e6:.0f} MB")


def run_once(name: str) -> tuple[Loaded, Session]:
    """A model that has decoded one prompt; the peak is counted from when it was loaded."""
    loaded = load(ModelSpec(name=name, dtype="float32", device="cpu"))
    forget_peak_memory(loaded.staged.device)
    session = Session(loaded.staged, 192)
    prompt = pseudo_prompts(loaded.tokenizer, 1, 64)[0]
    autoregressive(session, Request(prompt, Limits(32), Clock(loaded.staged.device)))
    return loaded, session


def resident(name: str = "VmRSS") -> int:
    """Bytes that this process holds, or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def interleaved(
    work: dict[str, Callable[[], object]], rounds: int, clock: Clock
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


# Memory first: what other measurements leave behind would count, or hide what is new.
MEASUREMENTS = (memory, baseline, strategies, bookkeeping, probing, growth, speculation)


def main() -> None:
    """Measure what was asked for and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [measure.__name__ for measure in MEASUREMENTS]
    parser.add_argument("--only", default=",".join(names))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    quiet()
    set_threads(asked.threads)
    chosen = [m for m in MEASUREMENTS if m.__name__ in asked.only.split(",")]
    lines = [line.cells() for measure in chosen for line in measure(asked.rounds)]
    header = ("what", "goal", "median", "low", "high", "note")
    title = f"{torch.get_num_threads()} threads, {asked.rounds} rounds"
    digits = dict.fromkeys(("median", "low", "high"), 3)
    emit([Sheet(title, header, tuple(lines), digits=digits)], None, "markdown")


if __name__ == "__main__":
    main()
