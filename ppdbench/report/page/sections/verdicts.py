"""The section on verdicts: are outputs greedy's, and what went wrong where they are not."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.report.decode_tables import differing, verdict_text
from ppdbench.report.html import Child, Node
from ppdbench.report.page.parts import Section, badge, html_table, paragraphs
from ppdbench.report.page.runs import Run
from ppdbench.report.sheet import Cell, Sheet

LISTED = 50  # failed examples; the others are in samples.jsonl

MEANING = (
    "identical: greedy's tokens, id by id. tie: the first difference lies where greedy's two best "
    "choices are closer together than rounding differs between the two ways of computing them. "
    "mismatch: any other difference, which is a bug; no speedup stands beside it."
)


def section(runs: Sequence[Run]) -> Section | None:
    """A line for each task and method, and every failure."""
    decoded = [run for run in runs if run.is_decode]
    failures = [*_failures(runs), *_not_run(runs)]
    if not decoded and not failures:
        return None
    body: list[Child] = [_headline(run) for run in decoded]
    if decoded:
        body += [html_table(_verdicts(decoded)), *paragraphs(MEANING, class_="note")]
    body += failures
    return Section("verdicts", "Verdicts", tuple(body))


def _headline(run: Run) -> Node:
    judged, identical, ties = run.held_to_greedy
    if run.mismatches:
        return badge("bad", f"{run.name}: {differing(run.mismatches)}")
    if not judged:
        return badge("plain", f"{run.name}: no output of an exact method to compare with greedy")
    words = f"{run.name}: {identical} of {judged} outputs of exact methods are greedy's"
    return badge("good", f"{words}, {ties} differ by a tie" if ties else words)


def _verdicts(runs: Sequence[Run]) -> Sheet:
    """A row for each method of each run, a column for each task."""
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    several = len(runs) > 1
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        found: dict[str, dict[str, str]] = {}
        for s in run.summaries:
            found.setdefault(s["label"], {})[s["task"]] = verdict_text(s)
        rows += [
            (label, *((run.name,) if several else ()), *(of.get(task) for task in tasks))
            for label, of in found.items()
        ]
    head = ("method", *(("run",) if several else ()), *tasks)
    return Sheet("Outputs against greedy decoding", head, tuple(rows))


def _failures(runs: Sequence[Run]) -> list[Node]:
    failed = [(run, sample) for run in runs for sample in run.failed]
    if not failed:
        return []
    left_out = len(failed) - LISTED
    rows = tuple(
        (sample.example_id, sample.task, sample.method, run.name, sample.error)
        for run, sample in failed[:LISTED]
    )
    notes = (f"{left_out} more are in samples.jsonl.",) if left_out > 0 else ()
    sheet = Sheet(
        "Failed examples", ("example", "task", "method", "run", "error"), rows, notes=notes
    )
    said = "examples failed; they count" if len(failed) > 1 else "example failed; it counts"
    return [
        badge("bad", f"{len(failed)} {said} in no figure"),
        html_table(sheet),
    ]


def _not_run(runs: Sequence[Run]) -> list[Node]:
    rows = tuple(
        (label, run.name, why) for run in runs for label, why in run.header.not_run.items()
    )
    return (
        [html_table(Sheet("Methods that did not run", ("method", "run", "why"), rows))]
        if rows
        else []
    )
