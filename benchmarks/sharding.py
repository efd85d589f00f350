"""What more ranks gain: examples per second of probing, against one rank with one thread.

Ranks are started by torchrun, with one thread each; in turns with the single process, for some
rounds. The time is that of the work: loading the model is left out, and of several ranks the
one that took longest counts.

    python -m benchmarks.sharding [--model synthetic:llama-20m] [--ranks 2] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ppdbench.samples import parse, sample_paths


def rate(ranks: int, words: list[str], folder: Path) -> float:
    """Examples per second of one run."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launch, "-m", "ppdbench", "probe", *words, "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    seconds: Counter[Path] = Counter()
    examples = 0
    for path in sample_paths(folder):
        for line in path.read_bytes().splitlines(keepends=True):
            sample = parse(line)
            assert sample is not None
            seconds[path] += sample["elapsed_ms"] / 1e3
            examples += 1
    return examples / max(seconds.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="synthetic:llama-20m")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=16)
    arguments = parser.parse_args()
    words = ["--model", arguments.model, "--data", "builtin", "--offline", "--threads", "1"]
    words += ["--task", "gsm8k", "--task", "squad", "--limit", str(arguments.limit)]
    words += ["--max-new-tokens", "64"]
    rates: dict[int, list[float]] = {1: [], arguments.ranks: []}
    with tempfile.TemporaryDirectory() as place:
        for number in range(arguments.rounds):
            for ranks, found in rates.items():
                found.append(rate(ranks, words, Path(place) / f"{ranks}-{number}"))
    for ranks, found in rates.items():
        print(f"{ranks} rank(s), 1 thread each: {statistics.median(found):.3f} examples/s")
    ratios = [many / one for one, many in zip(rates[1], rates[arguments.ranks], strict=True)]
    shown = ", ".join(f"{ratio:.2f}x" for ratio in ratios)
    print(f"gain: {statistics.median(ratios):.2f}x ({shown})")


if __name__ == "__main__":
    main()
