"""Figures 3 and 4 of "Predictive Pipelined Decoding": latency against compute, at half the layers.

Both axes follow from match rates alone, so the points are those of Table 2 and ours beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdbench.files import papers
from ppdbench.files.papers import Paper
from ppdbench.report.pictures.theory import tradeoff_picture
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.compared import ComparedRow, Quantity, compared
from ppdbench.tables.matches import HEAD, HEADS, MATCHES, TASKS, compared_rates, our_depth
from ppdbench.theory import FigurePoint, MatchRate, figure_points

if TYPE_CHECKING:
    from ppdbench.report.pictures.drawing import Drawing

QUANTITIES = (
    Quantity("match_rate", "match rate"),
    Quantity("latency_per_token", "latency"),
    Quantity("compute_per_time_unit", "compute/time"),
    Quantity("compute_per_token", "compute/token"),
)
# What the paper's text states of some points.
STATED: Mapping[str, Callable[[FigurePoint], float]] = {
    "normalized_latency_per_token": lambda point: point.latency_per_token,
    "latency_reduction": lambda point: 1 - point.latency_per_token,
    "avg_compute_per_time_unit": lambda point: point.compute_per_time_unit,
}


@dataclass(frozen=True, slots=True)
class ComparedPoint:
    """A point of the paper, and ours for the same task, head and k where there is one."""

    paper: FigurePoint
    ours: FigurePoint | None

    @property
    def names(self) -> tuple[str, str, int]:
        """The names that identify the point."""
        return self.paper.task, HEAD[self.paper.trained], self.paper.k


@dataclass(frozen=True, slots=True)
class Curves:
    """All points, and after which layer of how many each side's lie."""

    points: tuple[ComparedPoint, ...]
    paper_depth: str
    depth: str


def _draw(paper: Paper, runs: Sequence[StoredRun]) -> Drawing:
    curves = _curves(paper, runs)
    model = runs[0].header.model.name
    series = {
        f"paper, {curves.paper_depth}": [place.paper for place in curves.points],
        f"{model}, {curves.depth}": [place.ours for place in curves.points if place.ours],
    }
    return tradeoff_picture(
        series, foot=f"exits after {curves.paper_depth} and {curves.depth} layers"
    )


@table("ppd/figures", recipe=(MATCHES,), tasks=TASKS.values(), draw=_draw)
def ppd_figures(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The eighteen points, and what the paper's text says of some of them."""
    curves = _curves(paper, runs)
    rows = [ComparedRow(p.names, _values(p.paper), _values(p.ours)) for p in curves.points]
    laid = compared("Figures 3 and 4: points", ("task", "head", "k"), QUANTITIES, rows)
    return TableSheets(laid.data, (*laid.shown, _statements(paper, curves)))


def _values(point: FigurePoint | None) -> dict[str, Cell]:
    return {} if point is None else {q.key: getattr(point, q.key) for q in QUANTITIES}


def _curves(paper: Paper, runs: Sequence[StoredRun]) -> Curves:
    """The points at the paper's layer, and at ours that stands beside it."""
    depth, of, layer = our_depth(runs), paper["setting"]["layers"], paper["setting"]["layer"]
    compared = [
        c for c in compared_rates(papers.read_paper("ppd/2"), runs) if c.layer_paper == layer
    ]
    placed = []
    for c in compared:
        trained = c.head == HEAD[True]
        ours = None
        if c.ours is not None and c.layer is not None and 2 * c.layer >= depth:
            ours = _point(MatchRate(c.task, c.k, trained, c.ours.match_rate), depth, c.layer)
        theirs = _point(MatchRate(c.task, c.k, trained, c.paper), of, layer)
        placed.append(ComparedPoint(theirs, ours))
    return Curves(tuple(placed), f"{layer}/{of}", f"{compared[0].layer or '-'}/{depth}")


def _point(rate: MatchRate, depth: int, layer: int) -> FigurePoint:
    (point,) = figure_points([rate], n_layers=depth, exit_after=layer)
    return point


def _statements(paper: Paper, curves: Curves) -> Sheet:
    by_names = {place.names: place for place in curves.points}
    rows = [_statement(row, by_names) for row in paper["rows"]]
    return Sheet(
        "Figures 3 and 4: what the text says of them",
        ("what", "task", "head", "k", "paper", "by theory", "here"),
        tuple(rows),
        notes=(
            "Latency is y in both figures, compute per time unit x of Figure 3, "
            "compute per token x of Figure 4; greedy decoding is 1 in all three.",
            f"Read out after {curves.paper_depth} and {curves.depth} layers. {HEADS}",
            "by theory: from the paper's match rate with equations 3 and 5.",
        ),
        digits={"paper": 3, "by theory": 3, "here": 3},
    )


def _statement(
    row: Mapping[str, Any], by_names: Mapping[tuple[str, str, int], ComparedPoint]
) -> tuple[Cell, ...]:
    place = by_names[TASKS[row["task"]], HEAD[row["trained"]], row["k"]]
    value = STATED[row["quantity"]]
    ours = None if place.ours is None else value(place.ours)
    what = row["quantity"].replace("_", " ")
    return (what, *place.names, float(row["value"]), value(place.paper), ours)
