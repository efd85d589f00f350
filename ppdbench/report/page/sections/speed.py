"""How fast methods are beside greedy, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.claims import no_difference
from ppdbench.report import decode_tables, evidence
from ppdbench.report.page.charts.speedups import SpeedupBar, speedups
from ppdbench.report.page.comparison import differences, groups
from ppdbench.report.page.drawing import Drawing, slug
from ppdbench.report.page.html import h
from ppdbench.report.page.parts import (
    Section,
    Shown,
    by_run,
    few,
    gallery,
    numbers,
    paragraphs,
)
from ppdbench.report.page.runs import DECODES, Run, of_kind

Summary = Mapping[str, Any]
INEXACT = "inexact"
NAMED = 5  # methods in a sentence
WORDS = (
    "Decode time of greedy over the method's, paired example by example; whiskers are 95% "
    "bootstrap intervals. The band is what greedy gains over itself, the noise of that machine; "
    "a speedup that noise could have made is hollow and reads “no difference”. Losses are drawn "
    "like gains."
)


def section(runs: Sequence[Run]) -> tuple[Section | None, list[Drawing]]:
    """A picture for each task of each run, and for runs that can be compared together."""
    decoded = of_kind(runs, DECODES)
    drawings, body = by_run(decoded, _of_run)
    if len(decoded) > 1:
        together = _together(decoded)
        drawings += together
        body += [
            h("h3", "Runs side by side"),
            gallery(together),
            *paragraphs(*_kept_apart(decoded), class_="note"),
        ]
    content = (*paragraphs(WORDS), *body)
    return (Section("speed", "Speed", content) if decoded else None), drawings


def _of_run(run: Run) -> Shown:
    own = _drawings(run)
    sheets = decode_tables.comparison(run.summaries, run.overall)
    return own, [*few(run), gallery(own), numbers(run, sheets)]


def _drawings(run: Run) -> list[Drawing]:
    tables = {task: [s for s in run.summaries if s["task"] == task] for task in run.tasks}
    if len(run.tasks) > 1:
        tables["all tasks"] = run.overall
    return [
        _drawn(slug(run.name, "speed", task), task, [(s["label"], s) for s in summaries])
        for task, summaries in tables.items()
    ]


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
    """Which runs are not compared, and why."""
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


def speedup_of(label: str, summary: Summary) -> SpeedupBar:
    """A row of the picture, in the words that the tables use."""
    value, low, high = (summary[f"speedup{end}"] for end in ("", "_low", "_high"))
    noise = summary["noise_low"], summary["noise_high"]
    greedy = summary["method"] == "greedy"
    return SpeedupBar(
        label,
        _words(summary, value),
        value,
        low,
        high,
        None if None in noise else noise,
        claimed=value is not None and not greedy and not no_difference(summary),
    )


def _words(summary: Summary, value: float | None) -> str:
    if summary["mismatch"] and summary["exact"]:
        return f"{summary['mismatch']} mismatches: no speedup"
    if value is None:
        return str(summary["speedup_withheld"] or "no result")
    text, interval = evidence.speedup_cells(summary)
    mark = "" if summary["exact"] else f"{INEXACT}, "
    return f"{mark}{text.replace('x', '×')}{'' if interval == '-' else f' {interval}'}"


def described(given: Sequence[SpeedupBar]) -> str:
    """The same in a sentence."""
    if all(s.value is None for s in given):
        return "No speedup can be told."
    claimed = [s for s in given if s.claimed and s.value is not None]
    faster = [_named(s) for s in claimed if s.value and s.value > 1]
    slower = [_named(s) for s in claimed if s.value and s.value <= 1]
    words = [f"Faster: {_listed(faster)}." if faster else "Nothing is faster beyond noise."]
    words += [f"Slower: {_listed(slower)}."] if slower else []
    return " ".join(words)


def _named(speedup: SpeedupBar) -> str:
    mark = " (inexact)" if speedup.words.startswith(INEXACT) else ""
    return f"{speedup.label} {speedup.value:.2f}×{mark}"


def _listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _inline_note(summaries: Sequence[Summary]) -> str:
    """What a reader must not take for a result."""
    inline = [s["label"] for s in summaries if s.get("form") == "inline"]
    if not inline:
        return ""
    return (
        f"{', '.join(inline)} ran everything in turn in one process; its gain is a prediction, "
        "which stands under Theory and measurement."
    )
