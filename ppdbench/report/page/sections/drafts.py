"""How often guesses of trained methods hold the model's own token, by distance."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.probe.accuracy import Accuracy
from ppdbench.report import draft_tables
from ppdbench.report.page.charts.curves import Curve, Value, curves
from ppdbench.report.page.drawing import Drawing, slug
from ppdbench.report.page.html import h
from ppdbench.report.page.parts import Section, Shown, by_run, few, gallery, numbers
from ppdbench.report.page.runs import DRAFTS, Run, of_kind

WORDS = (
    "Share of places where the model's own token is among the first k guesses. Distance 1 is the "
    "token after the model's own next one. Bands are 95% intervals."
)


def section(runs: Sequence[Run]) -> tuple[Section | None, list[Drawing]]:
    """A picture for each task and method of each run, a line for each distance."""
    probed = of_kind(runs, DRAFTS)
    drawings, body = by_run(probed, _of_run)
    found = Section("drafts", "Draft accuracy", (h("p", WORDS), *body)) if probed else None
    return found, drawings


def _of_run(run: Run) -> Shown:
    own = _drawn(run, run.accuracies)
    sheets = draft_tables.sheets(run.header, run.accuracies, run.fewest_examples)
    return own, [*few(run), gallery(own), numbers(run, sheets)]


def _drawn(run: Run, rows: Sequence[Accuracy]) -> list[Drawing]:
    groups: dict[tuple[str, str], dict[int, list[Accuracy]]] = {}
    for row in rows:
        groups.setdefault((row.task, row.method), {}).setdefault(row.distance, []).append(row)
    return [
        curves(
            slug(run.name, "drafts", task, method),
            f"{task}: {method}",
            _described(distances),
            "guesses k",
            [
                Curve(f"distance {d}", i, [Value(r.k, r.accuracy, r.low, r.high) for r in of])
                for i, (d, of) in enumerate(distances.items())
            ],
        )
        for (task, method), distances in groups.items()
    ]


def _described(distances: dict[int, list[Accuracy]]) -> str:
    first = [f"{100 * of[0].accuracy:.0f}% at distance {d}" for d, of in distances.items()]
    return f"With one guess: {', '.join(first)}."
