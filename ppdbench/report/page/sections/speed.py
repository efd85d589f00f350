"""The section on speed: methods beside greedy, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.counterparts import beside
from ppdbench.report import batch_tables, decode_tables, evidence
from ppdbench.report.html import Child, Node, h
from ppdbench.report.page.comparison import differences, groups
from ppdbench.report.page.parts import (
    Section,
    all_numbers,
    by_run,
    few,
    gallery,
    html_table,
    paragraphs,
    with_code,
)
from ppdbench.report.page.runs import DECODES, Run, of_kind
from ppdbench.report.pictures.drawing import Drawing, slug
from ppdbench.report.pictures.speedups import described, speedup_of, speedups

Summary = Mapping[str, Any]
WORDS = (
    "Decode time of greedy over the method's, paired example by example; whiskers are 95% "
    "bootstrap intervals. The band is what greedy gains over itself, the noise of that machine; "
    "a speedup that noise could have made is hollow and reads “no difference”. Losses are drawn "
    "like gains."
)


def section(runs: Sequence[Run]) -> Section | None:
    """A picture for each task of each run, and for runs that can be compared together."""
    decoded = of_kind(runs, DECODES)
    body = by_run(decoded, _of_run)
    if len(decoded) > 1:
        body += [
            h("h3", "Runs side by side"),
            gallery(_together(decoded)),
            *paragraphs(*_kept_apart(decoded), class_="note"),
        ]
    return Section("speed", "Speed", [*paragraphs(WORDS), *body]) if decoded else None


def _of_run(run: Run) -> list[Child]:
    batches = batch_tables.has_batches(run.summaries)
    compare = batch_tables.comparison if batches else decode_tables.comparison
    sheets = compare(run.summaries, run.overall)
    peers = beside(run.header, run.sums) if run.kind == "bench" else []
    return [
        *few(run),
        gallery(_drawings(run)),
        *paragraphs(_untold(run), *evidence.added_notes(run.overall), class_="note"),
        *losses(run.overall),
        html_table(decode_tables.beside_peers(peers)) if peers else None,
        all_numbers(run, sheets),
    ]


def losses(summaries: Sequence[Summary]) -> list[Node]:
    """Say of each method that loses what acceptance it would take to pay, and what it has."""
    told = [words for s in summaries if (words := evidence.why_no_gain(s)) is not None]
    lines = h("ul", (h("li", with_code(words)) for words in told))
    return [h("h4", "Why some do not pay"), lines] if told else []


def _drawings(run: Run) -> list[Drawing]:
    """A picture of all tasks and of each where anything can be told; of all if it is nowhere."""
    tables = {task: [s for s in run.summaries if s["task"] == task] for task in run.tasks}
    if len(run.tasks) > 1:
        tables = {"all tasks": run.overall, **tables}
    told = {task: summaries for task, summaries in tables.items() if _any_told(summaries)}
    return [
        _drawn(slug(run.name, "speed", task), task, [(s["label"], s) for s in summaries])
        for task, summaries in (told or tables).items()
    ]


def _any_told(summaries: Sequence[Summary]) -> bool:
    return any(s["speedup"] is not None and s["method"] != "greedy" for s in summaries)


def _untold(run: Run) -> str:
    """Name the tasks that have no picture."""
    tables = {task: [s for s in run.summaries if s["task"] == task] for task in run.tasks}
    without = [task for task, summaries in tables.items() if not _any_told(summaries)]
    if not without or (not _any_told(run.overall) and len(without) == len(tables)):
        return ""
    return f"No speedup can be told of {', '.join(without)}; why stands under All numbers."


def _together(runs: Sequence[Run]) -> list[Drawing]:
    """Methods of several runs, where these decoded the same examples under the same conditions."""
    tasks = dict.fromkeys(task for run in runs for task in run.tasks)
    return [
        _drawn(
            slug("side-by-side", task, str(index)),
            f"{task}: {', '.join(run.name for run in group)}",
            [
                (f"{run.name}: {s['label']}", s)
                for run in group
                for s in run.summaries
                if s["task"] == task
            ],
        )
        for task in tasks
        for index, group in enumerate(groups(runs, task))
        if len(group) > 1
    ]


def _kept_apart(runs: Sequence[Run]) -> list[str]:
    """Name the runs that are not compared, and say why."""
    found = []
    for index, one in enumerate(runs):
        for other in runs[index + 1 :]:
            why = differences(one, other)
            if why:
                found.append(f"{one.name} and {other.name} are not compared: {'; '.join(why)}.")
    return found


def _drawn(name: str, task: str, labelled: Sequence[tuple[str, Summary]]) -> Drawing:
    given = [speedup_of(label, s) for label, s in labelled]
    summaries = [s for _, s in labelled]
    remarks = _inline_note(summaries), evidence.degenerate_note(summaries)
    words = " ".join([described(given), *filter(None, remarks)])
    return speedups(name, f"{task}: speedup over greedy", words, given)


def _inline_note(summaries: Sequence[Summary]) -> str:
    """Warn of what a reader must not take for a result."""
    inline = [s["label"] for s in summaries if s.get("form") == "inline"]
    if not inline:
        return ""
    return (
        f"{', '.join(inline)} ran everything in turn in one process; its gain is a prediction, "
        "which stands under Theory and measurement."
    )
