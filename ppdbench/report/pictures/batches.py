"""Batches in pictures: what all gain against what one user sees, and where a speedup ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.bench.labels import label_alone
from ppdbench.report.pictures.curves import HEIGHT, Upward, around
from ppdbench.report.pictures.drawing import (
    Area,
    Drawing,
    Label,
    Line,
    PointMark,
    Shape,
    side_by_side,
    slug,
)
from ppdbench.report.pictures.frame import Frame, Key, Scale, legend, number, round_ticks
from ppdbench.report.pictures.palette import series

Summary = Mapping[str, Any]
FRONT = "Pareto front"
CROSSOVER = "crossover"
PREDICTED = "predicted"
FORETOLD = "Broken lines are predicted from the time of passes by their rows, for one sequence."


@dataclass(frozen=True, slots=True)
class Sized:
    """A method through its batch sizes, smallest first."""

    name: str
    family: int  # which gives colour and shape
    summaries: Sequence[Summary]

    @property
    def paint(self) -> str:
        """The colour of the line."""
        return series(self.family)

    @property
    def key(self) -> Key:
        """The line's entry in the legend."""
        return Key(self.name, self.paint, self.family)


def pictures(name: str, summaries: Sequence[Summary]) -> list[Drawing]:
    """Both pictures of one task, as far as there is something to draw."""
    methods = list(_by_method(summaries))
    # Times of another day are none to compare with; speedups are over greedy of the same.
    of_one_day = [m for m in methods if not any(s.get("added") for s in m.summaries)]
    found = [_throughput(name, of_one_day), _speedup(name, methods)]
    return [drawing for drawing in found if drawing is not None]


def batch_picture(name: str, summaries: Sequence[Summary], foot: str) -> Drawing | None:
    """Both side by side, for a file."""
    found = pictures(name, summaries)
    return side_by_side(found, foot) if found else None


def _by_method(summaries: Sequence[Summary]) -> Iterator[Sized]:
    groups: dict[str, list[Summary]] = {}
    for s in summaries:
        groups.setdefault(label_alone(s["label"], s["batch"]), []).append(s)
    for family, (label, group) in enumerate(groups.items()):
        yield Sized(label, family, sorted(group, key=lambda s: int(s["batch"])))


def _throughput(name: str, methods: Sequence[Sized]) -> Drawing | None:
    """Tokens per second of all sequences over those of one, a point for each size."""
    places = [p for m in methods for s in m.summaries if (p := _place(s)) is not None]
    if not places:
        return None
    task = methods[0].summaries[0]["task"]
    most = max(x for x, _ in places)
    upward = around([0.0, *(y for _, y in places)], number, "{:.1f}".format)
    front = _front(places)
    keys = [*(m.key for m in methods), *[Key(FRONT, "ink", None, dash=2)] * (len(front) > 1)]
    shapes, top = legend(keys)
    frame = Frame(Scale(0, 1.08 * most), upward.scale, top + 8, HEIGHT)
    ticks = round_ticks(0, 1.08 * most, 6)
    shapes += frame.axes(ticks, upward.ticks, "tokens/s of one sequence", y_text=upward.tick)
    for method in methods:
        shapes += _path(method, frame, set(front))
    if len(front) > 1:  # over the lines of methods, which it may follow
        shapes.append(Line([frame.at(*place) for place in front], "ink", 1.2, 2))
    words = (
        "To the right each user is served faster, to the top all together are; the numbers are "
        "batch sizes. Filled points lie on the Pareto front: none is better in both."
    )
    return Drawing(
        slug(name, "throughput", task),
        f"{task}: tokens/s of all sequences",
        words,
        frame.bottom + 38,
        tuple(shapes),
    )


def _place(summary: Summary) -> tuple[float, float] | None:
    each, together = summary["tokens_per_s_per_sequence"], summary["tokens_per_s"]
    return None if each is None or together is None else (each, together)


def _front(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The places that no other beats in both, from the left to the right."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(set(places), reverse=True):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found[::-1]


def _path(method: Sized, frame: Frame, front: set[tuple[float, float]]) -> Iterator[Shape]:
    points = [(s["batch"], place) for s in method.summaries if (place := _place(s)) is not None]
    yield Line([frame.at(*place) for _, place in points], method.paint, 1.6)
    for size, place in points:
        x, y = frame.at(*place)
        hint = f"{method.name}, batch {size}: {place[1]:.1f} tokens/s, {place[0]:.1f} each"
        yield PointMark(x, y, method.paint, method.family, place not in front, hint)
        yield Label(x + 5, y - 5, str(size), size=8)


def _speedup(name: str, methods: Sequence[Sized]) -> Drawing | None:
    """Speedups over greedy in a batch of the same size, and where they fall below 1."""
    told = [m for m in methods if _claimed(m) and m.summaries[0]["method"] != "greedy"]
    sizes = sorted({s["batch"] for m in told for s in _claimed(m)})
    if len(sizes) < 2:
        return None
    task = told[0].summaries[0]["task"]
    ends = [s[f"speedup{end}"] for m in told for s in _claimed(m) for end in ("", "_low", "_high")]
    foretold = [s["predicted_speedup"] for m in told for s in _predicted(m)]
    upward = around([1.0, *ends, *foretold], "{:.1f}×".format, "{:.2f}×".format)
    crossed = any(m.summaries[0].get("crossover_batch") is not None for m in told)
    keys = [*(m.key for m in told), *[Key(CROSSOVER, "ink", 3, line=False)] * crossed]
    keys += [Key(PREDICTED, "ink", None, dash=2)] if foretold else []
    shapes, top = legend(keys)
    frame = Frame(Scale(0.94 * sizes[0], 1.06 * sizes[-1], log=True), upward.scale, top + 8, HEIGHT)
    shapes += frame.axes(sizes, upward.ticks, "batch", y_text=upward.tick)
    shapes.append(Line([frame.at(x, 1.0) for x in (frame.x.low, frame.x.high)], "ink"))
    for method in told:
        shapes.append(_band(method, frame))
    for method in told:
        shapes += _gain(method, frame, upward)
    words = [_sentence(method) for method in told]
    return Drawing(
        slug(name, "speedup-by-batch", task),
        f"{task}: speedup over greedy by batch",
        " ".join([*words, *([FORETOLD] if foretold else [])]),
        frame.bottom + 38,
        tuple(shapes),
    )


def _claimed(method: Sized) -> list[Summary]:
    return [s for s in method.summaries if s["speedup_low"] is not None]


def _predicted(method: Sized) -> list[Summary]:
    return [s for s in _claimed(method) if s.get("predicted_speedup") is not None]


def _band(method: Sized, frame: Frame) -> Shape:
    ends = _claimed(method)
    upper = [frame.at(s["batch"], s["speedup_high"]) for s in ends]
    lower = [frame.at(s["batch"], s["speedup_low"]) for s in ends]
    return Area([*upper, *reversed(lower)], method.paint)


def _gain(method: Sized, frame: Frame, upward: Upward) -> Iterator[Shape]:
    ends = _claimed(method)
    yield Line([frame.at(s["batch"], s["speedup"]) for s in ends], method.paint, 1.8)
    if len(foretold := _predicted(method)) > 1:
        at = [frame.at(s["batch"], s["predicted_speedup"]) for s in foretold]
        yield Line(at, method.paint, 1.2, 2)
    for s in ends:
        x, y = frame.at(s["batch"], s["speedup"])
        hint = f"{method.name}, batch {s['batch']}: {upward.value(s['speedup'])}"
        yield PointMark(x, y, method.paint, method.family, False, hint)
    crossed = ends[0].get("crossover_batch")
    if crossed is not None:
        x, y = frame.at(crossed, 1.0)
        yield PointMark(x, y, "ink", 3, False, _sentence(method))
        yield Label(x, y + 14, f"{crossed:.1f}", "ink", "middle", bold=True)


def _sentence(method: Sized) -> str:
    told = method.summaries[0]
    words, interval = told.get("crossover"), told.get("crossover_interval")
    if not words or interval == "-":
        return ""
    foretold = told.get("crossover_predicted")
    return f"{method.name} {words} {interval}{f' (predicted: {foretold})' if foretold else ''}."
