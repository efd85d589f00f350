"""The section on drafts: how often trained guesses hold the model's own token, by distance."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.report import draft_tables
from ppdbench.report.html import h
from ppdbench.report.page.parts import Section, Shown, by_run, few, gallery, numbers
from ppdbench.report.page.runs import DRAFTS, Run, of_kind
from ppdbench.report.pictures.drawing import Drawing
from ppdbench.report.pictures.probes import accuracies

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
    own = accuracies(run.name, run.accuracies, panel="method", line="distance")
    sheets = draft_tables.sheets(run.header, run.accuracies, run.fewest_examples)
    return own, [*few(run), gallery(own), numbers(run, sheets)]
