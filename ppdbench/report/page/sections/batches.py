"""The section on batches: throughput against what one user sees, and where speedups end."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.report import batch_tables
from ppdbench.report.html import Child
from ppdbench.report.page.parts import Section, by_run, few, gallery, paragraphs
from ppdbench.report.page.runs import DECODES, Run, of_kind
from ppdbench.report.pictures.batches import pictures

WORDS = (
    "Several sequences decoded together: a pass reads the weights once for all of them. Speeds are "
    "of the time in which every place of the batch was taken; a speedup is over greedy decoding "
    "in a batch of the same size. The shaded bands are 95% intervals over examples."
)


def section(runs: Sequence[Run]) -> Section | None:
    """Two pictures for each task of each run that decoded in batches."""
    batched = [run for run in of_kind(runs, DECODES) if batch_tables.has_batches(run.summaries)]
    body = by_run(batched, _of_run)
    return Section("batches", "Batches", [*paragraphs(WORDS), *body]) if batched else None


def _of_run(run: Run) -> list[Child]:
    drawings = [
        drawing
        for task in run.tasks
        for drawing in pictures(run.name, [s for s in run.summaries if s["task"] == task])
    ]
    return [*few(run), gallery(drawings)]
