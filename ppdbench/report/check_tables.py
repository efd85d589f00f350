"""Tables of a check for people, and the page that a CI job shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppdbench.check.comparison import Comparison
from ppdbench.check.figures import NOISES, Figure, rate
from ppdbench.check.judge import Check
from ppdbench.check.metrics import METRICS
from ppdbench.check.snapshot import Snapshot
from ppdbench.files.clean import clean
from ppdbench.report.export import to_markdown
from ppdbench.report.sheet import Sheet

NOISE = "noise:"  # begins the limits that noise sets
HEADER = ("what", "figure", "baseline", "now", "limit", "verdict")


def sheets(comparison: Comparison) -> list[Sheet]:
    """One table per task, then what failed with its reason, and the verdict where logs end."""
    failures = [_failures(comparison.failed)] if comparison.failed else []
    return [*_by_task(comparison), *failures, _verdict(comparison)]


def _by_task(comparison: Comparison) -> list[Sheet]:
    tasks = dict.fromkeys(check.task for check in comparison.checks)
    return [_table(t, [c for c in comparison.checks if c.task == t]) for t in tasks]


def _table(title: str, checks: Sequence[Check]) -> Sheet:
    rows = tuple(
        (c.subject, c.metric, c.text(c.baseline), c.text(c.now), c.limit, c.verdict) for c in checks
    )
    notes = tuple(
        f"{c.verdict} {c.subject} {c.metric}: {c.note}" for c in checks if c.note and not c.failed
    )
    return Sheet(title, HEADER, rows, notes=notes, spare=("limit", "baseline"))


def _verdict(comparison: Comparison) -> Sheet:
    return Sheet(
        "Verdict",
        ("run", "baseline", "verdict"),
        ((comparison.run, comparison.baseline, comparison.verdict),),
        notes=(
            *_legend(comparison.checks),
            *comparison.notes,
            *(f"Not run: {text}" for text in comparison.unfinished),
        ),
    )


def _legend(checks: Sequence[Check]) -> Iterator[str]:
    """Say what the figures count, and what a limit of noise is."""
    metrics = dict.fromkeys(check.metric for check in checks)
    meanings = [f"{name}: {METRICS.get(name).meaning}" for name in metrics if name in METRICS]
    if meanings:
        yield f"{'. '.join(meanings)}."
    if any(check.limit.startswith(NOISE) for check in checks):
        yield (
            f"{NOISE} what the noise of both runs leaves of the baseline's speedup. Speedups are "
            "compared here, and none is claimed: the run's own table says which are beyond noise."
        )


def long(comparison: Comparison) -> Sheet:
    """Every check with its numbers in full, a row each."""
    rows = tuple(
        (c.task, c.subject, c.metric, c.baseline, c.now, c.limit, c.verdict, c.note)
        for c in comparison.checks
    )
    return Sheet("checks", ("task", *HEADER, "note"), rows)


def summary(comparison: Comparison) -> str:
    """Markdown for a job's page: the verdict, what failed, and all the rest folded away."""
    sign = {0: "passed", 1: "**failed**", 3: "passed, but examples failed to run"}
    head = f"## ppdbench check ({comparison.kind}): {sign[comparison.exit_code]}\n"
    baseline = clean(comparison.baseline, "markdown")
    lines = [head, f"{comparison.verdict}. Baseline: {baseline}.\n"]
    lines += [f"{clean(note, 'markdown')}\n" for note in comparison.notes]
    if comparison.failed:
        lines.append(to_markdown([_failures(comparison.failed)]))
    if comparison.unfinished:
        not_run = (clean(text, "markdown") for text in comparison.unfinished)
        lines.append("".join(f"- not run: {text}\n" for text in not_run))
    everything = to_markdown(_by_task(comparison))
    lines.append(f"<details><summary>All checks</summary>\n\n{everything}\n</details>\n")
    return "\n".join(lines) + "\n"


def _failures(failed: Sequence[Check]) -> Sheet:
    rows = tuple(
        (c.task, c.subject, c.metric, c.text(c.baseline), c.text(c.now), c.limit, c.note)
        for c in failed
    )
    return Sheet("Failed", ("task", *HEADER[:-1], "why"), rows, prose="why")


def stored(made: Snapshot) -> Sheet:
    """Show a baseline's content, as rates."""
    told = [figure for figure in made.figures if figure.metric not in NOISES]
    rows = tuple((f.task, f.subject, f.metric, _held(f)) for f in told)
    title = f"Baseline of {made.model['name']} ({made.model['dtype']})"
    return Sheet(title, ("task", "what", "figure", "value"), rows)


def _held(figure: Figure) -> str:
    """A figure as a rate, or the reason why nobody may claim it."""
    return figure.withheld or METRICS.get(figure.metric).text(rate(figure.parts))
