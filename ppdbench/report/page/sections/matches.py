"""The section on match rates: how early layers know the final token, by k and position."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.report import probe_tables
from ppdbench.report.html import h
from ppdbench.report.page.parts import Section, Shown, by_run, few, gallery, numbers
from ppdbench.report.page.runs import PROBES, Run, of_kind
from ppdbench.report.pictures.drawing import Drawing
from ppdbench.report.pictures.probes import match_maps, match_rates
from ppdbench.report.sheet import Sheet

WORDS = (
    "A match: the token that the whole model takes is among the k likeliest after so many layers. "
    "Bands are 95% intervals that allow for tokens of one text going right or wrong together."
)


def section(runs: Sequence[Run]) -> tuple[Section | None, list[Drawing]]:
    """Curves and heat maps of every probe run."""
    probes = of_kind(runs, PROBES)
    heading = "h4" if len(probes) > 1 else "h3"
    drawings, body = by_run(probes, lambda run: _of_run(run, heading))
    found = Section("matches", "Match rates", (h("p", WORDS), *body)) if probes else None
    return found, drawings


def _of_run(run: Run, heading: str) -> Shown:
    lines, maps = match_rates(run.name, run.rates), match_maps(run.name, run.rates)
    return [*lines, *maps], [
        *few(run),
        gallery(lines),
        h(heading, "Match rate in % by position in the output"),
        gallery(maps),
        numbers(run, _sheets(run)),
    ]


def _sheets(run: Run) -> list[Sheet]:
    """The tables of `probe`, without the saturation, which this page does not draw on."""
    return probe_tables.sheets(run.header, run.rates, [], run.fewest_examples)[:-1]
