"""Speedups in batches as the time of passes predicts them, beside those that are measured.

A batch of n sequences that draft m tokens each runs one pass of n * (m + 1) rows, greedy decoding
in the same batch one of n rows: both take as much longer than for one sequence as a pass of so
many rows takes longer. Passes that draft grow likewise, with a row for each sequence; all other
work is done for one sequence after the other. What a step commits does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ppdbench.bench.labels import label_alone
from ppdbench.bench.sums import SampleSums
from ppdbench.runs.records import PassModel, StepParts

GREEDY = "baseline"


def predicted_speedups(
    model: PassModel | None, labels: Mapping[int, str], sums: Sequence[SampleSums]
) -> dict[int, float]:
    """The speedup of a method by each size of the batch whose passes were timed.

    `labels` are its own by size; what its steps commit is read off the smallest.
    """
    if model is None:
        return {}
    smallest = min(labels)
    done = [one for one in sums if one.method == labels[smallest] and not one.failed]
    greedy, parts = map(model.steps.get, (GREEDY, label_alone(labels[smallest], smallest)))
    steps = sum(one.steps for one in done)
    if greedy is None or parts is None or not steps:
        return {}
    rows = sum(one.rows for one in done) / steps
    committed = sum(one.tokens - 1 for one in done) / steps
    return {
        size: committed * step_ms(model, greedy, size, 1) / ours
        for size in labels
        if (ours := step_ms(model, parts, size, rows)) > 0 and size * rows <= model.rows[-1]
    }


def step_ms(model: PassModel, parts: StepParts, size: int, rows: float) -> float:
    """The time of a step of so many sequences together, each with so many rows on average."""
    passes = parts.pass_ms * pass_ms(model, size * rows) / pass_ms(model, parts.rows)
    drafts = parts.draft_pass_ms * pass_ms(model, size) / pass_ms(model, 1)
    return passes + drafts + size * (parts.draft_ms + parts.bookkeeping_ms)


def pass_ms(model: PassModel, rows: float) -> float:
    """The time of a pass, on the line between the two nearest that were timed."""
    return float(np.interp(rows, model.rows, model.ms))
