"""The section on a sweep over a method's options."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.grid import TEMPERATURE
from ppdbench.bench.sweep_summary import swept
from ppdbench.report import sweep_tables
from ppdbench.report.html import Child, h
from ppdbench.report.page.parts import Section, few, folded, gallery, html_table
from ppdbench.report.page.runs import SWEEPS, Run, of_kind
from ppdbench.report.pictures.sweep import acceptance_curves, best_settings, option_map

DRAWN = 10  # settings in the picture of the best; the table has all
WORDS = (
    "The stronger a colour, the larger the gain (blue) or loss (orange). ★ best, ▲ faster than "
    "greedy, ▼ slower, ≈ no difference beyond noise, ✗ mismatch, ! failed; in brackets what was "
    "measured on fewer examples than the best. "
)


def section(runs: Sequence[Run]) -> Section | None:
    """The map of each sweep, and its best settings."""
    sweeps = of_kind(runs, SWEEPS)
    body: list[Child] = [h("p", WORDS, sweep_tables.CHOSEN)]
    for run in sweeps:
        found = swept(run.header, run.sums)
        whole = option_map(run.name, found) if len(found.axes) > 1 else None
        kept = acceptance_curves(run.name, found) if TEMPERATURE in found.axes else None
        best = best_settings(run.name, found, DRAWN)
        own = [drawing for drawing in (kept, whole, best) if drawing is not None]
        body += [
            h("h3", run.name) if len(sweeps) > 1 else None,
            *few(run),
            gallery(own),
            folded("All numbers", map(html_table, sweep_tables.sheets(found))),
        ]
    return Section("sweep", "Sweep", body) if sweeps else None
