"""The section on latency: an example's time in prefill, drafting, verification and the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppdbench.bench.sums import SampleSums
from ppdbench.report.html import Child
from ppdbench.report.page.parts import Section, by_run, folded, gallery, html_table, paragraphs
from ppdbench.report.page.runs import DECODES, Run, of_kind
from ppdbench.report.pictures.drawing import Drawing, slug
from ppdbench.report.pictures.stacked import stacked
from ppdbench.report.sheet import Sheet
from ppdbench.stats import grouped

TOGETHER = "verify and bookkeeping"  # which only runs with --profile have timed apart
WORDS = (
    "Mean time of one example. The prefill makes the first token. A step drafts, verifies in one "
    "pass of the model, and keeps books; for methods that draft inside that pass there is no "
    "draft time apart. Runs with --profile tell verification and bookkeeping apart."
)
LATER = "Not drawn, as times of another day are none to compare with: {}, added to the run later."


def section(runs: Sequence[Run]) -> Section | None:
    """A picture for each task of each run."""
    body = by_run(of_kind(runs, DECODES), _of_run)
    return Section("latency", "Latency", [*paragraphs(WORDS), *body]) if any(body) else None


def _of_run(run: Run) -> list[Child]:
    found = {task: bars for task in run.tasks if (bars := _of_task(run, task))}
    if not found:
        return []
    added = run.header.added or {}
    drawn = {task: {m: p for m, p in of.items() if m not in added} for task, of in found.items()}
    own = [_drawn(run, task, bars) for task, bars in drawn.items() if bars]
    tables = (html_table(_sheet(task, bars)) for task, bars in found.items())
    notes = paragraphs(LATER.format(", ".join(added)) if added else "", class_="note")
    return [gallery(own), *notes, folded("All numbers", tables)]


def _of_task(run: Run, task: str) -> dict[str, dict[str, float]]:
    """Mean milliseconds of each part, by method; greedy first, which every run has timed."""
    done = [one for one in run.sums if one.task == task and not one.failed]
    groups = {label: group for (label,), group in grouped(done, "method").items()}
    profiled = all(one.sample.profile for group in groups.values() for one in group)
    batches = any(one.sample.batch > 1 for group in groups.values() for one in group)
    if profiled or batches or "greedy" in groups:
        return {label: _parts(group, profiled) for label, group in groups.items()}
    found = {label: _parts(group, profiled=False) for label, group in groups.items()}
    return {"greedy": _baseline(next(iter(groups.values()))), **found}


def _parts(group: Sequence[SampleSums], profiled: bool) -> dict[str, float]:
    steps, draft = _mean([s.every_ms for s in group]), _mean([s.draft_ms for s in group])
    found = {"prefill": _mean([s.sample.prefill_ms for s in group]), "draft": draft}
    if profiled:
        verify = _mean([s.sample.profile.pass_ms for s in group if s.sample.profile])
        return {**found, "verify": verify, "bookkeeping": max(0.0, steps - draft - verify)}
    return {**found, TOGETHER: max(0.0, steps - draft)}


def _baseline(group: Sequence[SampleSums]) -> dict[str, float]:
    steps = _mean([s.baseline_every_ms for s in group])
    prefill = _mean([s.sample.baseline_prefill_ms for s in group])
    return {"prefill": prefill, "draft": 0.0, TOGETHER: steps}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _drawn(run: Run, task: str, bars: Mapping[str, Mapping[str, float]]) -> Drawing:
    names = list(next(iter(bars.values())))
    totals = {label: sum(parts.values()) for label, parts in bars.items()}
    least = min(totals, key=lambda label: totals[label])
    return stacked(
        slug(run.name, "latency", task),
        f"{task}: time per example in ms",
        f"Least: {least}, {totals[least]:.1f} ms for an example.",
        names,
        {label: [parts[name] for name in names] for label, parts in bars.items()},
        "ms",
    )


def _sheet(task: str, bars: Mapping[str, Mapping[str, float]]) -> Sheet:
    names = list(next(iter(bars.values())))
    return Sheet(
        f"{task}: mean ms per example",
        ("method", *names, "together"),
        tuple((m, *(p[name] for name in names), sum(p.values())) for m, p in bars.items()),
        digits=dict.fromkeys((*names, "together"), 2),
    )
