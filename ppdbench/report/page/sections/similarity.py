"""The section on hidden-transfer: how close pseudo states come to true ones on their way up."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.report import draft_tables
from ppdbench.report.html import h
from ppdbench.report.page.parts import Section, Shown, by_run, folded, gallery, table
from ppdbench.report.page.runs import SIMILARITY, Run, of_kind
from ppdbench.report.pictures.drawing import Drawing
from ppdbench.report.pictures.probes import similarities

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
    own = similarities(run.name, run.similarities)
    sheets = draft_tables.similarity_sheets(run.header, run.similarities)
    return own, [gallery(own), folded("All numbers", map(table, sheets))]
