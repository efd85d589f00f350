"""Measure everything that has a goal, in one table; none of it is a test.

    python -m benchmarks.targets [--only baseline,passes,...] [--rounds 5] [--threads 2]

Everything that is compared runs in turns; ratios are medians of rounds or of examples, with the
smallest and largest of them. SmolLM2 is needed (`make smollm2`), other engines are used where they
are installed (`python -m benchmarks.engines`). Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from typing import Any

import click
import torch

from benchmarks.targets.memory import memory
from benchmarks.targets.methods import bookkeeping, speculation, split, strategies
from benchmarks.targets.rows import TargetRow
from benchmarks.targets.speed import baseline, engines, growth, passes, probing, ready
from ppdbench.engine.quiet import quiet
from ppdbench.machine.environment import set_threads
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet

MEASUREMENTS = (
    *(memory, ready, baseline, passes, engines),
    *(strategies, speculation, split, bookkeeping, probing, growth),
)


def main() -> None:
    """Measure what was asked for and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [measure.__name__ for measure in MEASUREMENTS]
    parser.add_argument("--only", default=",".join(names), help=f"some of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    if unknown := [name for name in asked.only.split(",") if name not in names]:
        parser.error(f"--only {', '.join(unknown)}: use {', '.join(names)}")
    quiet()
    set_threads(asked.threads)
    chosen = [m for m in MEASUREMENTS if m.__name__ in asked.only.split(",")]
    lines = [told(line) for measure in chosen for line in measure(asked.rounds)]
    header = ("what", "goal", "median", "low", "high", "note")
    title = f"{torch.get_num_threads()} threads, {asked.rounds} rounds"
    digits = dict.fromkeys(("median", "low", "high"), 3)
    emit([Sheet(title, header, tuple(lines), digits=digits)], None, "markdown")


def told(row: TargetRow) -> tuple[Any, ...]:
    """The cells of a row, which is said at once: who stops the rest has what came before."""
    what, goal, median, low, high, note = row.cells()
    found = note if median is None else f"{median:.3f} ({low:.3f} to {high:.3f})  {note}"
    click.echo(f"{what}: {found}, goal {goal}", err=True)
    return what, goal, median, low, high, note


if __name__ == "__main__":
    main()
