"""Pictures of what probes found: matches by layer and position, guesses, pseudo states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ppdbench.errors import DataError
from ppdbench.probe.accuracy import Accuracy
from ppdbench.probe.similarity import Similarity
from ppdbench.probe.summary import TOTAL, Rate
from ppdbench.report.pictures.curves import Curve, Value, around, curves
from ppdbench.report.pictures.drawing import Drawing, slug
from ppdbench.report.pictures.heatmap import HeatmapCell, heatmap
from ppdbench.report.pictures.palette import heat
from ppdbench.stats import grouped

HEADS = {"N": "own head", "Y": "trained head"}
T = TypeVar("T", Rate, Accuracy, Similarity)


def _some(groups: dict[tuple[Any, ...], list[T]]) -> dict[tuple[Any, ...], list[T]]:
    if not groups:
        raise DataError("no match rates to draw: no rows of the kind that this plot shows")
    return groups


def _aimed(task: str, target: str) -> str:
    return task if target == "greedy" else f"{task}, {target} target"


def match_curves(name: str, rates: Sequence[Rate]) -> list[Drawing]:
    """Match rate by layer: a picture for each task and target, a line for each k and head."""
    totals = [rate for rate in rates if rate.bucket == TOTAL]
    ks = sorted({rate.k for rate in totals})
    return [
        curves(
            slug(name, "match", task, target),
            f"{_aimed(task, target)}: match rate by layer",
            _halfway(group, ks),
            "layers run",
            [
                Curve(
                    f"k = {k}" if head == "N" else f"k = {k}, trained head",
                    ks.index(k),
                    [Value(r.layer, r.match_rate, r.low, r.high) for r in of],
                    dash=head == "Y",
                    hollow=head == "Y",
                )
                for (head, k), of in sorted(grouped(group, "head", "k").items())
            ],
        )
        for (task, target), group in _some(grouped(totals, "task", "target")).items()
    ]


def _halfway(rates: Sequence[Rate], ks: Sequence[int]) -> str:
    """The rates half-way up, as a sentence."""
    layers = sorted({rate.layer for rate in rates})
    middle = layers[(len(layers) - 1) // 2]
    of = {rate.k: rate.match_rate for rate in rates if (rate.layer, rate.head) == (middle, "N")}
    words = ", ".join(f"{100 * of[k]:.0f}% for k = {k}" for k in ks if k in of)
    return f"After layer {middle}: {words}." if words else "Trained heads only."


def match_maps(name: str, rates: Sequence[Rate], whole: bool = False) -> list[Drawing]:
    """Match rate by layer and position for the smallest k; `whole`: every cell with its number."""
    k = min((rate.k for rate in rates), default=0)
    rates = [rate for rate in rates if rate.bucket != TOTAL and rate.k == k]
    return [
        heatmap(
            slug(name, "positions", task, target, head),
            f"{_aimed(task, target)}, {HEADS[head]}, k = {k}",
            _along(group),
            {(str(rate.layer), rate.bucket.rpartition("-")[2]): _cell(rate) for rate in group},
            "output position, up to and including; rows: layers run",
            whole,
        )
        for (task, head, target), group in _some(grouped(rates, "task", "head", "target")).items()
    ]


def _cell(rate: Rate) -> HeatmapCell:
    where, share = f"layer {rate.layer}, positions {rate.bucket}", rate.match_rate
    return HeatmapCell(heat(share), f"{100 * share:.0f}", f"{where}: {100 * share:.1f}%")


def _along(rates: Sequence[Rate]) -> str:
    """The row half-way up, from its first bucket to its last."""
    layers = sorted({rate.layer for rate in rates})
    middle = layers[(len(layers) - 1) // 2]
    first, *_, last = [100 * r.match_rate for r in rates if r.layer == middle] * 2
    return f"After layer {middle}: {first:.0f}% at the first positions, {last:.0f}% at the last."


def accuracy_curves(name: str, rows: Sequence[Accuracy], panel: str, line: str) -> list[Drawing]:
    """Accuracy of the first k guesses: a picture for each task and `panel`, lines by `line`.

    One of the two is the method and the other the distance.
    """
    lines = list(dict.fromkeys(getattr(row, line) for row in rows))
    return [
        curves(
            slug(name, "drafts", task, str(which)),
            f"{task}: {_called(panel, which)}",
            _first_guesses(grouped(group, line), line),
            "guesses k",
            [
                Curve(
                    _called(line, one),
                    lines.index(one),
                    [Value(r.k, r.accuracy, r.low, r.high) for r in of],
                )
                for (one,), of in grouped(group, line).items()
            ],
        )
        for (task, which), group in grouped(rows, "task", panel).items()
    ]


def _called(field: str, value: object) -> str:
    return f"distance {value}" if field == "distance" else str(value)


def _first_guesses(lines: Mapping[tuple[Any, ...], Sequence[Accuracy]], line: str) -> str:
    near = "at" if line == "distance" else "by"
    first = [
        f"{100 * of[0].accuracy:.0f}% {near} {_called(line, one)}" for (one,), of in lines.items()
    ]
    return f"With one guess: {', '.join(first)}."


def similarity_curves(name: str, rows: Sequence[Similarity]) -> list[Drawing]:
    """Similarity by layer: a picture for each task and method, a line for each step."""
    drawings = []
    for (task, method), group in grouped(rows, "task", "method").items():
        steps = grouped(group, "step")
        drawings.append(
            curves(
                slug(name, "similarity", task, method),
                f"{task}: cosine of {method}",
                _described(steps),
                "layers run",
                [
                    Curve(f"step {step}", i, [Value(r.layer, r.similarity) for r in of])
                    for i, ((step,), of) in enumerate(steps.items())
                ],
                around([0.0, 1.0, *(row.similarity for row in group)]),
            )
        )
    return drawings


def _described(steps: Mapping[tuple[Any, ...], Sequence[Similarity]]) -> str:
    words = [
        f"step {step} from {of[0].similarity:.2f} to {of[-1].similarity:.2f}"
        for (step,), of in steps.items()
    ]
    return f"Up to the last layer: {', '.join(words)}."
