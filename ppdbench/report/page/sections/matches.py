"""How early layers know the final token: match rates by layer, k and position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ppdbench.probe.summary import TOTAL, Rate
from ppdbench.report import probe_tables
from ppdbench.report.page.charts.curves import Curve, Value, curves
from ppdbench.report.page.charts.heatmap import HeatmapCell, heatmap
from ppdbench.report.page.drawing import Drawing, slug
from ppdbench.report.page.html import h
from ppdbench.report.page.parts import Section, Shown, by_run, few, gallery, numbers
from ppdbench.report.page.runs import PROBES, Run, of_kind
from ppdbench.report.sheet import Sheet

HEADS = {"N": "own head", "Y": "trained head"}
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
    lines, maps = _curves(run), _maps(run)
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


def _curves(run: Run) -> list[Drawing]:
    """A picture for each task and target, a line for each k and head."""
    totals = [rate for rate in run.rates if rate.bucket == TOTAL]
    drawings = []
    for (task, target), group in groupby(totals, key=lambda r: (r.task, r.target)):
        rates = list(group)
        ks = sorted({rate.k for rate in rates})
        heads = sorted({rate.head for rate in rates})
        given = [
            Curve(
                f"k = {k}" if head == "N" else f"k = {k}, trained head",
                ks.index(k),
                [_value(rate) for rate in rates if (rate.k, rate.head) == (k, head)],
                dashed=head == "Y",
            )
            for head in heads
            for k in ks
        ]
        how = "" if target == "greedy" else f", {target} target"
        drawings.append(
            curves(
                slug(run.name, "match", task, target),
                f"{task}{how}: match rate by layer",
                _described(rates, ks),
                "layers run",
                [curve for curve in given if curve.values],
            )
        )
    return drawings


def _value(rate: Rate) -> Value:
    return Value(rate.layer, rate.match_rate, rate.low, rate.high)


def _described(rates: Sequence[Rate], ks: Sequence[int]) -> str:
    """The rates half-way up, as a sentence."""
    layers = sorted({rate.layer for rate in rates})
    middle = layers[(len(layers) - 1) // 2]
    of = {rate.k: rate.match_rate for rate in rates if (rate.layer, rate.head) == (middle, "N")}
    words = ", ".join(f"{100 * of[k]:.0f}% for k = {k}" for k in ks if k in of)
    return f"After layer {middle}: {words}." if words else "Trained heads only."


def _maps(run: Run) -> list[Drawing]:
    """A heat map for each task, target and head, for the smallest k."""
    k = min(rate.k for rate in run.rates)
    rates = [rate for rate in run.rates if rate.bucket != TOTAL and rate.k == k]
    drawings = []
    for (task, head, target), group in groupby(rates, key=lambda r: (r.task, r.head, r.target)):
        shown = list(group)
        how = "" if target == "greedy" else f", {target} target"
        drawings.append(
            heatmap(
                slug(run.name, "positions", task, target, head),
                f"{task}{how}, {HEADS[head]}, k = {k}",
                _along(shown),
                {(str(rate.layer), _end(rate.bucket)): _cell(rate) for rate in shown},
                "output position, up to and including; rows: layers run",
            )
        )
    return drawings


def _cell(rate: Rate) -> HeatmapCell:
    where = f"layer {rate.layer}, positions {rate.bucket}"
    share = rate.match_rate
    return HeatmapCell(share, f"{100 * share:.0f}", f"{where}: {100 * share:.1f}%")


def _along(rates: Sequence[Rate]) -> str:
    """The row half-way up, from its first bucket to its last."""
    layers = sorted({rate.layer for rate in rates})
    middle = layers[(len(layers) - 1) // 2]
    first, *_, last = [100 * r.match_rate for r in rates if r.layer == middle] * 2
    return f"After layer {middle}: {first:.0f}% at the first positions, {last:.0f}% at the last."


def _end(bucket: str) -> str:
    return bucket.rpartition("-")[2]
