"""The gain of more ranks: examples probed per second, against one rank with one thread.

In turns for some rounds: one process; ranks that torchrun starts; and as many processes that
know nothing of each other and do the whole work each, which is all that the machine has to give.
Every process has one thread. The time is that of the work: loading is left out, and of several
ranks the one that took longest counts. First comes what processes gain that only count, or that
only read: again and again as many bytes as the model's weights have, or 1 GB, which no cache
holds. Where that is less than their number, it is what cores share that is scarce; or others
had a part of them, which is why each line ends in how many cores' time other programs took.

    python -m benchmarks.sharding [--model synthetic:llama-20m] [--ranks 2] [--rounds 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from ppdbench.engine.loading import ModelSpec, load
from ppdbench.machine.pages import enlarge, span
from ppdbench.runs.records import ProbedSample
from ppdbench.runs.samples import parse_sample, sample_paths
from ppdbench.runs.store import read_run_header
from ppdbench.stats import median

# What a pass reads, and how fast, decides what is left for a second process.
WAYS = {"one by one": (), "batches of 8": ("--batch-size", "8")}
SECONDS = 1.0  # of each measurement of the machine
CONTEXT = multiprocessing.get_context("spawn")


def count() -> float:
    """Additions per second, which need no memory."""
    total, until = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        total += sum(1 for _ in range(10_000))
    return total / SECONDS


def read(n_bytes: int) -> float:
    """Times per second that so many bytes are read."""
    torch.set_num_threads(1)
    buffer = torch.ones(n_bytes // 4)
    enlarge([span(buffer)])  # as weights are
    times, until = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        torch.sum(buffer)
        times += 1
    return times / SECONDS


def at_once(work: Callable[[], float], processes: int) -> float:
    """Return the joint rate of so many processes that begin at the same time."""
    start, line = CONTEXT.Barrier(processes), CONTEXT.SimpleQueue()
    started = [CONTEXT.Process(target=_tell, args=(work, start, line)) for _ in range(processes)]
    for process in started:
        process.start()
    found = [line.get() for _ in started]
    for process in started:
        process.join()
    return float(sum(found))


def _tell(work: Callable[[], float], start: Any, line: Any) -> None:
    work()  # a core that was asleep is not yet what it is at work
    start.wait()
    line.put(work())


def begin(words: Sequence[str], folder: Path, ranks: int = 1) -> subprocess.Popen[bytes]:
    """One run, by one process or by the ranks of one launch."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launch, "-m", "ppdbench", "probe", *words, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def end(run: subprocess.Popen[bytes]) -> None:
    """Wait for it; its own words if it failed."""
    _, said = run.communicate()
    if run.returncode:
        sys.exit(said.decode())


def rate(folder: Path) -> float:
    """Examples per second of a run that has ended."""
    seconds: dict[Path, float] = {}
    examples, kind = 0, read_run_header(folder).kind
    for path in sample_paths(folder):
        for line in path.read_bytes().splitlines(keepends=True):
            sample = parse_sample(line, kind)
            assert isinstance(sample, ProbedSample)
            seconds[path] = seconds.get(path, 0.0) + (sample.elapsed_ms or 0.0) / 1e3
            examples += 1
    return examples / max(seconds.values())


def compare(words: Sequence[str], ranks: int, place: Path) -> tuple[float, float, float]:
    """Examples per second of one process, of ranks, and of processes of their own together."""
    one, many = place / "one", place / "ranks"
    end(begin(words, one))
    end(begin(words, many, ranks))
    apart = [place / f"apart-{n}" for n in range(ranks)]
    for run in [begin(words, folder) for folder in apart]:
        end(run)
    return rate(one), rate(many), sum(map(rate, apart))


def gain(many: Sequence[float], one: Sequence[float]) -> str:
    """The median of ratios, and all of them."""
    ratios = [a / b for a, b in zip(many, one, strict=True)]
    return f"{median(ratios):.2f}x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"


class Others:
    """The processor time that programs besides this one and those it started have taken."""

    def __init__(self) -> None:
        self._seconds, self._since = self._so_far(), time.perf_counter()

    def _so_far(self) -> float:
        every = psutil.cpu_times()
        ours = [resource.getrusage(r) for r in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        theirs = every.user + every.nice + every.system
        return float(theirs - sum(usage.ru_utime + usage.ru_stime for usage in ours))

    def __str__(self) -> str:
        seconds = time.perf_counter() - self._since
        return f"others: {max(0.0, self._so_far() - self._seconds) / seconds:.2f} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="synthetic:llama-20m")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--only", choices=WAYS, help="one way to probe instead of both")
    arguments = parser.parse_args()
    ranks, rounds = arguments.ranks, range(arguments.rounds)
    words = ["--model", arguments.model, "--data", "builtin", "--offline", "--threads", "1"]
    words += ["--task", "gsm8k", "--task", "squad", "--limit", str(arguments.limit)]
    words += ["--max-new-tokens", "64"]
    weights = load(ModelSpec(name=arguments.model, offline=True)).staged.weight_bytes()
    machine: dict[str, Callable[[], float]] = {
        "counting": count,
        f"reading {weights / 1e6:.0f} MB": partial(read, weights),
        "reading 1 GB": partial(read, 10**9),
    }
    for name, work in machine.items():
        others = Others()
        pairs = [(at_once(work, 1), at_once(work, ranks)) for _ in rounds]
        alone, together = zip(*pairs, strict=True)
        print(f"{name}, {ranks} processes over one: {gain(together, alone)}; {others}", flush=True)
    for way in [arguments.only] if arguments.only else WAYS:
        found, others = [], Others()
        for _ in rounds:
            with tempfile.TemporaryDirectory() as place:
                found.append(compare([*words, *WAYS[way]], ranks, Path(place)))
        one, many, apart = zip(*found, strict=True)
        print(f"{arguments.model}, {way}: one rank {median(one):.3f} examples/s; {others}")
        print(f"  {ranks} ranks over one: {gain(many, one)}")
        print(f"  {ranks} processes of their own over one: {gain(apart, one)}", flush=True)


if __name__ == "__main__":
    main()
