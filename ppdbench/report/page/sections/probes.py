"""The sections on probes: early knowledge of tokens, guesses ahead, and pseudo states."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.probe.kinds import by_kind
from ppdbench.report import draft_tables, probe_tables
from ppdbench.report.html import Child, h
from ppdbench.report.page.parts import (
    Section,
    all_numbers,
    by_run,
    few,
    folded,
    gallery,
    html_table,
)
from ppdbench.report.page.runs import DRAFTS, PROBES, SIMILARITY, Run, of_kind
from ppdbench.report.pictures.probes import (
    accuracy_curves,
    match_curves,
    match_maps,
    similarity_curves,
)

OF_MATCHES = (
    "A match: the token that the whole model takes is among the k likeliest after so many layers. "
    "Bands are 95% intervals that allow for tokens of one text going right or wrong together."
)
OF_GUESSES = (
    "Share of places where the model's own token is among the first k guesses. Distance 1 is the "
    "token after the model's own next one. Bands are 95% intervals."
)
OF_STATES = (
    "Mean cosine of a pseudo state and the state that the true token has at that place, after so "
    "many layers. The first of a step is where it transfers."
)


def matches(runs: Sequence[Run]) -> Section | None:
    """Match rates by layer, k and position, of every probe run."""
    probed = of_kind(runs, PROBES)
    heading = "h4" if len(probed) > 1 else "h3"
    body = by_run(probed, lambda run: _matches(run, heading))
    return Section("matches", "Match rates", [h("p", OF_MATCHES), *body]) if probed else None


def _matches(run: Run, heading: str) -> list[Child]:
    # Without the saturation, which this page does not draw on.
    kinds = by_kind(run.header.model.layer_kinds, run.ranks, sorted({rate.k for rate in run.rates}))
    sheets = probe_tables.sheets(run.header, run.rates, kinds, [], run.fewest_examples)[:-1]
    return [
        *few(run),
        gallery(match_curves(run.name, run.rates)),
        h(heading, "Match rate in % by position in the output"),
        gallery(match_maps(run.name, run.rates)),
        all_numbers(run, sheets),
    ]


def drafts(runs: Sequence[Run]) -> Section | None:
    """Accuracy of trained methods' guesses, by distance."""
    probed = of_kind(runs, DRAFTS)
    body = by_run(probed, _guesses)
    return Section("drafts", "Draft accuracy", [h("p", OF_GUESSES), *body]) if probed else None


def _guesses(run: Run) -> list[Child]:
    own = accuracy_curves(run.name, run.accuracies, panel="method", line="distance")
    sheets = draft_tables.sheets(run.header, run.accuracies, run.fewest_examples)
    return [*few(run), gallery(own), all_numbers(run, sheets)]


def similarity(runs: Sequence[Run]) -> Section | None:
    """Closeness of hidden-transfer's pseudo states to true ones on their way up."""
    probed = of_kind(runs, SIMILARITY)
    body = by_run(probed, _states)
    return Section("similarity", "Pseudo states", [h("p", OF_STATES), *body]) if probed else None


def _states(run: Run) -> list[Child]:
    sheets = draft_tables.similarity_sheets(run.header, run.similarities)
    own = gallery(similarity_curves(run.name, run.similarities))
    return [own, folded("All numbers", map(html_table, sheets))]
