"""What it costs to read stored runs: time and memory, for one file and for many shards.

Samples are like those of `bench` on the reference model: 64 tokens after a prompt of 160,
about 3.5 KB a line. Each figure is taken in a process of its own.

    python -m benchmarks.stored [--folder /tmp/stored]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ppdbench.bench.summary import overall, summarize
from ppdbench.samples import to_line
from ppdbench.store import read_run

TASKS, METHODS = ("gsm8k", "squad"), ("greedy", "layerskip")
HEADER: dict[str, Any] = {
    "schema_version": 1,
    "kind": "bench",
    "config": {"strict": False, "target": {"kind": "greedy"}},
    "model": {"name": "reference", "dtype": "float32", "synthetic": False},
    "data": {task: {"metrics": []} for task in TASKS},
    "methods": {name: {"name": name, "exact": True, "options": {}} for name in METHODS},
    "facts": {},
    "not_run": {},
}


def sample(number: int, method: str, draw: random.Random) -> dict[str, Any]:
    """One line of a run."""
    accepted = [draw.randrange(3) for _ in range(24)]

    def ids(n: int) -> list[int]:
        return [draw.randrange(4096) for _ in range(n)]

    def times(n: int) -> list[float]:
        return [round(draw.uniform(1, 4), 4) for _ in range(n)]

    return {
        "example_id": str(number),
        "task": TASKS[number % 2],
        "method": method,
        "verdict": "identical",
        "number": number,
        "cut_tokens": 0,
        "prompt_ids": ids(160),
        "references": ["An answer of some words, as data sets have them."],
        "peak_memory_bytes": 400 << 20,
        "finish": "length",
        "output_ids": ids(64),
        "text": "Text of about the length that sixty-four tokens have when they are words. " * 3,
        "accepted": accepted,
        "proposed": [2] * 24,
        "rows": [3] * 24,
        "prefill_ms": 9.87,
        "step_ms": times(24),
        "draft_ms": times(24),
        "baseline_prefill_ms": 9.76,
        "baseline_step_ms": times(63),
        "baseline_again_ms": 150.123,
        "processes": 1,
    }


def write(folder: Path, examples: int, shards: int) -> Path:
    """A run of so many examples, two methods each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(HEADER))
    names = [f"samples-{n}.jsonl" for n in range(shards)] if shards > 1 else ["samples.jsonl"]
    draw = random.Random(0)
    for index, name in enumerate(names):
        with (folder / name).open("wb") as file:
            for number in range(index, examples, shards):
                file.writelines(to_line(sample(number, method, draw)) for method in METHODS)
    return folder


def read(folder: Path, summarized: bool) -> None:
    """Read a run and say what that took."""
    start, start_cpu = time.perf_counter(), time.process_time()
    run = read_run(folder)
    if summarized:
        summarize(run.header, run.samples, scores=False)
        overall(run.header, run.samples)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = "read and summarised" if summarized else "read"
    print(f"{len(run.samples):7} samples {what}: {seconds:.2f} s ({cpu:.2f} s CPU), {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="Keep the runs here.")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(Path(arguments.read[0]), arguments.read[1] == "summarized")
        return
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(arguments.folder or temporary)
        small = write(place / "one-file", 5_000, 1)
        large = write(place / "eight-shards", 50_000, 8)
        for folder, what in ((small, "summarized"), (large, "merged")):
            size = sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 2**20
            print(f"{folder.name}: {size:.0f} MiB")
            command = [sys.executable, "-m", "benchmarks.stored", "--read", str(folder), what]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
