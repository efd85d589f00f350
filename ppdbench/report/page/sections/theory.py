"""The section on theory: the promise of match rates for pipelined decoding, and its measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppdbench.bench.claims import LEAST_EXAMPLES
from ppdbench.bench.pipelined import geometric
from ppdbench.report import pipeline_tables, theory_tables
from ppdbench.report.html import Child, h
from ppdbench.report.page.parts import Section, folded, gallery, html_table, paragraphs
from ppdbench.report.page.runs import DECODES, PROBES, Run, of_kind
from ppdbench.report.pictures.drawing import slug
from ppdbench.report.pictures.histogram import histogram
from ppdbench.report.pictures.theory import MeasuredGain, Promise, promises
from ppdbench.stats import grouped

WORDS = (
    "While one unit finishes a token, others run the first layers for the k likeliest next ones. "
    "Lines: the speedup of Theorem 4.1 with the measured match rate; circles: the same cost for "
    "the matches in the order in which they came. Circles above their line: matches came in runs."
)
PIPELINED = "Speedups that a ppd run measured stand beside what theory made of its own matches."


def section(runs: Sequence[Run]) -> Section | None:
    """Promises of probe runs, and what pipelined runs kept of them."""
    probes, decoded = of_kind(runs, PROBES), of_kind(runs, DECODES)
    pipelined = [run for run in decoded if any("p" in s for s in run.summaries)]
    body = [child for run in probes for child in _of_probe(run, pipelined)]
    body += [child for run in pipelined for child in _of_pipelined(run)]
    return Section("theory", "Theory and measurement", body) if body else None


def _of_probe(run: Run, pipelined: Sequence[Run]) -> list[Child]:
    n_layers = run.header.model.n_layers
    if not any(rate.layer < n_layers for rate in run.rates):
        return []
    measured = theory_tables.measured_rows(run.stored, theory_tables.RowFilter(), run.ranks)
    rows = [row for row in measured.rows if row.speedup is not None and row.recorded_latency]
    drawings = []
    for (task, target, head), group in grouped(rows, "task", "target", "head").items():
        how = "" if target == "greedy" else f", {target} target"
        whose = ", trained head" if head == "Y" else ""
        kept = _kept(run, task, pipelined) if head == "N" and target == "greedy" else []
        drawings.append(
            promises(
                slug(run.name, "theory", task, target, head),
                f"{task}{how}{whose}: speedup promised",
                _best(group),
                [_promise(row, n_layers) for row in group],
                kept,
            )
        )
    return [
        h("h3", f"{run.name}: promised"),
        *paragraphs(WORDS),
        gallery(drawings),
        folded("All numbers", map(html_table, theory_tables.run_sheets(measured, whole=True))),
    ]


def _promise(row: theory_tables.TheoryRow, n_layers: int) -> Promise:
    assert row.speedup is not None
    assert row.recorded_latency is not None
    recorded_speedup = n_layers * row.tokens / row.examples / row.recorded_latency
    return Promise(row.layer, row.k, row.speedup, recorded_speedup)


def _best(rows: Sequence[theory_tables.TheoryRow]) -> str:
    if rows[0].examples < LEAST_EXAMPLES:
        return theory_tables.TOO_FEW
    best = max(rows, key=lambda row: row.speedup or 0)
    return (
        f"At most {best.speedup:.2f}×: exit after layer {best.layer}, k = {best.k}, "
        f"match rate {100 * best.match_rate:.0f}%."
    )


def _kept(run: Run, task: str, pipelined: Sequence[Run]) -> list[MeasuredGain]:
    """Measured speedups on one unit's terms, with the same weights and the same questions."""
    same = [other for other in pipelined if _questions(other, task) == _questions(run, task)]
    return [
        MeasuredGain(
            other.header.facts[s["label"]]["exit_after"],
            other.header.facts[s["label"]]["k"],
            s["speedup_one_unit"],
            s["speedup_one_unit_low"],
            s["speedup_one_unit_high"],
        )
        for other in same
        for s in other.summaries
        if s["task"] == task and s.get("speedup_one_unit") and not s["options"].get("head")
    ]


def _questions(run: Run, task: str) -> tuple[Any, ...]:
    """The weights that were asked, their type, and what they were asked."""
    model, data = run.header.model, run.header.data.get(task)
    return model.weight_hash, model.dtype, data and data.sha256


def _of_pipelined(run: Run) -> list[Child]:
    sheets = pipeline_tables.sheets(run.summaries)
    drawings = [
        histogram(
            slug(run.name, "runs", s["label"], s["task"]),
            f"{s['label']} on {s['task']}: tokens from miss to miss",
            f"Match rate {100 * s['p']:.0f}%. Marks: what independent matches would give.",
            s["run_lengths"],
            "tokens in a run",
            _independent(s["p"], max(s["run_lengths"])),
        )
        for s in run.summaries
        if s.get("run_lengths")
    ]
    return [
        h("h3", f"{run.name}: measured"),
        *paragraphs(PIPELINED),
        map(html_table, sheets[:2]),
        gallery(drawings),
    ]


def _independent(p: float, longest: int) -> dict[int, float]:
    return {n: geometric(p, n) for n in range(1, longest + 1)}
