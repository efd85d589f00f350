"""How close the pseudo states of hidden-transfer come to true ones on their way up."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.probe.closeness import Similarity
from ppdbench.report import draft_tables
from ppdbench.report.page.charts.curves import Curve, Upward, Value, curves
from ppdbench.report.page.drawing import Drawing, slug
from ppdbench.report.page.frame import number, round_ticks
from ppdbench.report.page.html import h
from ppdbench.report.page.parts import Section, Shown, by_run, folded, gallery, table
from ppdbench.report.page.runs import SIMILARITY, Run, of_kind

WORDS = (
    "Mean cosine of a pseudo state and the state that the true token has at that place, after so "
    "many layers. The first of a step is where it transfers."
)


def section(runs: Sequence[Run]) -> tuple[Section | None, list[Drawing]]:
    """A picture for each task and method of each run, a line for each step."""
    probed = of_kind(runs, SIMILARITY)
    drawings, body = by_run(probed, _of_run)
    found = Section("similarity", "Pseudo states", (h("p", WORDS), *body)) if probed else None
    return found, drawings


def _of_run(run: Run) -> Shown:
    own = _drawn(run, run.similarities)
    sheets = draft_tables.similarity_sheets(run.header, run.similarities)
    return own, [gallery(own), folded("All numbers", map(table, sheets))]


def _drawn(run: Run, rows: Sequence[Similarity]) -> list[Drawing]:
    groups: dict[tuple[str, str], dict[int, list[Similarity]]] = {}
    for row in rows:
        groups.setdefault((row.task, row.method), {}).setdefault(row.step, []).append(row)
    return [
        curves(
            slug(run.name, "similarity", task, method),
            f"{task}: {method}, cosine of pseudo and true states",
            _described(steps),
            "layers run",
            [
                Curve(f"step {step}", i, [Value(row.layer, row.similarity) for row in of])
                for i, (step, of) in enumerate(steps.items())
            ],
            _upward([row.similarity for of in steps.values() for row in of]),
        )
        for (task, method), steps in groups.items()
    ]


def _upward(cosines: Sequence[float]) -> Upward:
    """From 0 to 1, and below where a cosine is."""
    ticks = round_ticks(min(0.0, *cosines), 1.0, 6)
    step = ticks[1] - ticks[0]
    below = [ticks[0] - step] if ticks[0] > min(cosines) else []
    return Upward([*below, *ticks], number, lambda cosine: f"{cosine:.3f}")


def _described(steps: dict[int, list[Similarity]]) -> str:
    words = [
        f"step {step} from {of[0].similarity:.2f} to {of[-1].similarity:.2f}"
        for step, of in steps.items()
    ]
    return f"Up to the last layer: {', '.join(words)}."
