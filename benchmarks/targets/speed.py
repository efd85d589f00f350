"""Greedy decoding, passes and probing beside `generate()`, other engines and the memory's speed.

    python -m benchmarks.targets.speed MODEL DTYPE

prints the seconds until the passes of a model were ready, in a process that has done nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.engines import __main__ as other_engines
from benchmarks.targets.rows import (
    DTYPES,
    MIDDLE,
    REAL,
    REFERENCE,
    SMALL,
    TargetRow,
    in_another_process,
    interleaved,
    over,
)
from ppdbench.bench.baseline import bytes_per_token, compare_with_generate
from ppdbench.bench.pass_curve import measure_curve
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Target, generator_for
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.files.caches import cache_folder
from ppdbench.machine.clock import Clock
from ppdbench.machine.environment import set_threads
from ppdbench.probe.match import Prober
from ppdbench.stats import median
from ppdbench.tasks.passages import pseudo_prompts

FASTER = {"float32": "1.5 or more", "bfloat16": "2.3 or more"}  # than generate()
ROWS = (1, 9, 16, 32)
# What passes of so many rows may take, of the time of one row.
IN_TILES = {9: 1.15, 16: 1.25, 32: 1.5}
MOST = {"float32": {9: 1.35, 16: 1.8}, "bfloat16": {9: 1.4}}
STORED = "ppdbench greedy, bfloat16, as stored"
ENGINES = {"llama.cpp": "1.0 or more", "OpenVINO GenAI": "1.2 or more"}


def baseline(rounds: int) -> Iterator[TargetRow]:
    """Greedy against `generate()`, and against the bandwidth."""
    cases = [(REFERENCE, "float32"), *((name, d) for name in (SMALL, REAL) for d in DTYPES)]
    for name, dtype in (*cases, (MIDDLE, "float32")):
        report = compare_with_generate(
            ModelSpec(name=name, dtype=dtype, device="cpu", offline=True),
            prompts=lambda tokenizer: pseudo_prompts(tokenizer, 2, 64),
            new_tokens=128 if name != MIDDLE else 48,
            rounds=rounds,
        )
        note = f"{report.path.kernels}, {report.identical}/{report.prompts} identical"
        if name != MIDDLE:
            ratios = [r.ratio for r in report.rounds]
            yield TargetRow(f"greedy / generate(), {name}, {dtype}", FASTER[dtype], ratios, note)
        else:
            steps = report.prompts * (report.new_tokens - 1)
            read = report.bytes_per_token * steps / report.bandwidth_bytes_per_s
            fractions = [read / r.greedy_decode_s for r in report.rounds]
            what = f"greedy, fraction of bandwidth, {name}, {dtype}"
            yield TargetRow(what, "0.75 or more", fractions, note)


def passes(rounds: int) -> Iterator[TargetRow]:
    """Passes of several rows over one of a single row, and that beside reading the weights."""
    for name in (REAL, MIDDLE):
        for dtype in DTYPES:
            spec = ModelSpec(name=name, dtype=dtype, device="cpu", offline=True)
            curve = measure_curve(spec, rows=ROWS, rounds=rounds)
            others = curve.points[1:]
            most, told = most_of_one(dtype, curve.path.kernels), curve.path.kernels
            for point in (each for each in others if each.rows in most):
                what = f"{point.rows} rows over one, {name}, {dtype}"
                goal = f"{most[point.rows]:.2f} or less"
                yield TargetRow(what, goal, curve.over_one(point), told)
            what = f"reading the weights over a pass of one row, {name}, {dtype}"
            yield TargetRow(what, "0.85 or more", curve.reading_shares, told)


def most_of_one(dtype: str, kernels: str) -> Mapping[int, float]:
    """Goals of passes by their rows; matrix tiles have stricter ones."""
    return IN_TILES if "AMX" in kernels.partition(", without")[0] else MOST[dtype]


def ready(rounds: int) -> Iterator[TargetRow]:
    """Seconds until passes are ready: where nothing is built yet, and later."""
    module = "benchmarks.targets.speed"
    with tempfile.TemporaryDirectory() as folder:
        seconds = in_another_process(module, SMALL, "float32", PPDBENCH_CACHE=folder)
    yield TargetRow(f"ready at first, s, {SMALL}, float32", "15 or less", [seconds])
    for dtype in DTYPES:
        later = [in_another_process(module, REAL, dtype) for _ in range(rounds)]
        yield TargetRow(f"ready later, s, {REAL}, {dtype}", "0.3 or less", later)


def engines(rounds: int) -> Iterator[TargetRow]:
    """The fastest way of ours to decode a GGUF file in bfloat16, beside other engines."""
    asked = argparse.Namespace(
        model=REAL,
        threads=torch.get_num_threads(),
        prompt_tokens=64,
        tokens=128,
        rounds=rounds,
        home=cache_folder() / "engines",
    )
    found = {each.name: each for each in other_engines.measured(asked).engines}
    ours = median(found[STORED].tokens_per_s)
    for name, goal in ENGINES.items():
        theirs = found[name].tokens_per_s
        ratio = [ours / median(theirs)] if theirs else []
        what = f"greedy as stored / {name}, {REAL}, bfloat16"
        yield TargetRow(what, goal, ratio, found[name].said)


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


def ready_s(name: str, dtype: str) -> float:
    """Seconds from a loaded model to passes that can run, kernels and their checks included."""
    spec = ModelSpec(name=name, dtype=dtype, device="cpu", offline=True)
    return load(spec).staged.path.prepared_s


if __name__ == "__main__":
    quiet()
    set_threads(None)
    print(json.dumps(ready_s(*sys.argv[1:])))
