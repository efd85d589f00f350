"""Two checkouts side by side: do they print the same tables and decode the same tokens?

For a change that should change nothing. Runs that are stored are shown by both checkouts, in
every format, and so are runs that each of them makes anew: what they print must be equal byte by
byte, times included, since both read the same run. Of the new runs themselves everything must be
equal but times, memory and load.

    python -m benchmarks.same BEFORE AFTER [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ppdbench.runs.records import TIMES

FORMATS = ("table", "json", "csv", "markdown", "latex")
STORED = ("results/readme", "results/pipelined", "results/tables/runs")
COMMON = ("--offline", "--threads", "1", "--data", "builtin", "--limit", "5")
FRESH = {
    "probe": ("probe", "--task", "squad", "--task", "xsum", "--head", "reference"),
    "drafts": ("probe", "--what", "drafts", "--task", "gsm8k", "--method", "medusa"),
    "decode": ("decode", "--method", "layerskip", "--task", "gsm8k", "--max-new-tokens", "24"),
    "bench": (
        *("bench", "--task", "gsm8k", "--max-new-tokens", "24", "--compile", "off"),
        *("--method", "prompt-lookup", "--method", "eagle", "--method", "early-exit"),
        *("--method", "ppd", "--method", "lookahead", "--method", "prompt-tokens"),
    ),
    "sampled": (
        *("decode", "--method", "speculative", "--set", "draft_model=reference-draft"),
        *("--target", "top-p", "--task", "squad"),
    ),
}
# What tells one process, moment or place from another.
PASSING = frozenset({"created", "started", "command", "commit", "run_id", "sum", "checksum"})


class Checkout:
    """A working tree whose package is run."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def run(self, *words: str) -> tuple[int, bytes]:
        """The exit code and stdout of one command."""
        done = subprocess.run(
            [sys.executable, "-m", "ppdbench", *words],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "COLUMNS": "100"},
            capture_output=True,
        )
        if done.returncode not in (0, 1, 3):
            raise SystemExit(f"{' '.join(words)}\n{done.stderr.decode()}")
        return done.returncode, done.stdout


def samples_of(run: Path) -> list[Any]:
    """The samples of a run without what no two runs share."""
    lines = (run / "samples.jsonl").read_text("utf-8").splitlines()
    return [_lasting(json.loads(line)) for line in lines]


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        left = {name: each for name, each in value.items() if name not in TIMES | PASSING}
        return {name: _lasting(each) for name, each in left.items()}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def shown(run: Path) -> Iterator[tuple[str, ...]]:
    """The commands that show a run."""
    for form in FORMATS:
        yield "report", str(run), "--format", form
    kind = json.loads((run / "run.json").read_text("utf-8"))["kind"]
    if kind == "probe":
        yield "theory", "--run", str(run), "--format", "json"
    if kind in ("probe", "decode", "bench"):
        yield "check", str(run), "--baseline", str(run), "--format", "json"


def differences(before: Checkout, after: Checkout, runs: Sequence[Path]) -> Iterator[str]:
    """The commands over stored runs that the two answer differently."""
    for run in runs:
        for words in shown(run):
            if before.run(*words) != after.run(*words):
                yield " ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description="Do two checkouts print and decode the same?")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--quick", action="store_true", help="one stored run of each folder")
    asked = parser.parse_args()
    before, after = Checkout(asked.before), Checkout(asked.after)
    found: list[str] = []
    runs: list[Path] = []
    for folder in STORED:
        there = [path.parent for path in sorted((before.root / folder).glob("*/run.json"))]
        runs += there[:1] if asked.quick else there
    with tempfile.TemporaryDirectory() as scratch:
        for name, words in FRESH.items():
            pair = [Path(scratch, f"{name}-{side}") for side in ("before", "after")]
            for checkout, out in zip((before, after), pair, strict=True):
                checkout.run(*words, *COMMON, "--out", str(out))
            if samples_of(pair[0]) != samples_of(pair[1]):
                found.append(f"samples of {' '.join(words)}")
            runs += pair
        found += differences(before, after, runs)
    for line in found:
        print(f"differs: {line}")
    print(f"{len(runs)} runs compared, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
