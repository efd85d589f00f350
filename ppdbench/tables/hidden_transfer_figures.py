"""Figures 3 to 7 of "Parallel Decoding via Hidden Transfer": how right and how close guesses are.

The paper prints no values of these curves, only what they show. So the points are ours alone, and
each statement of the paper stands beside what they say of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ppdbench.bench.summary import ALL
from ppdbench.errors import DataError
from ppdbench.files.papers import Paper
from ppdbench.probe.accuracy import accuracies
from ppdbench.probe.similarity import similarities
from ppdbench.report.pictures.transfer import transfer_figures
from ppdbench.report.probe_tables import label
from ppdbench.report.sheet import Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.recipe import RecipeStep

if TYPE_CHECKING:
    from ppdbench.report.pictures.drawing import Drawing

TASKS = ("xsum", "gsm8k")
ON_TASKS = "--task xsum --task gsm8k --shots 1"
TRAINED = "--text {text} --max-documents 2000 --sequence 128 --batch-size 4 --steps 120"
OWN, PLAIN, MASKED, HEADS, EARLY = (
    "hidden-transfer",
    "hidden transfer",
    "hidden transfer, masked",
    "medusa heads",
    "early exit heads",
)
FIRST_AT, SECOND_AT = (5, 10, 15, 20, 25), (20, 25, 30)  # of 32 layers
SHOWN = (1, 3, 5, 10)

EXITS = RecipeStep(
    "hidden-transfer-exits",
    f"train medusa {TRAINED} --heads 3 --layers 0 --rank 16 --after {{35/40}}",
)
DRAFTS = RecipeStep(
    "hidden-transfer-drafts",
    f"probe --what drafts {ON_TASKS} --method medusa --method hidden-transfer "
    "--method hidden-transfer:masked=true --method medusa:addon={hidden-transfer-exits}",
)
SIMILAR = RecipeStep(
    "hidden-transfer-similarity", f"probe --what similarity {ON_TASKS} --method hidden-transfer"
)


def _compared(name: str, layers: Sequence[int], before: str = "") -> tuple[RecipeStep, RecipeStep]:
    """Candidates for one step, one for each layer, and a probe of all of them."""
    shares = [f"{{{layer}/32}}" for layer in layers]
    train = RecipeStep(
        name, f"train hidden-transfer {TRAINED}{before} --compare {','.join(shares)}"
    )
    methods = " ".join(f"--method {OWN}:addon={{{name}}}/layer-{share}" for share in shares)
    return train, RecipeStep(f"{name}-drafts", f"probe --what drafts {ON_TASKS} {methods}")


FIRST = _compared("hidden-transfer-first", FIRST_AT)
SECOND = _compared("hidden-transfer-second", SECOND_AT, before=" --layers {15/32}")


CurvePlace = tuple[str, str, int | None, int]  # task, series, layer and distance


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One value of a curve: an accuracy (`k`) or a cosine, of guesses so far ahead."""

    figure: str
    task: str
    series: str
    layer: int | None
    distance: int
    k: int | None
    value: float
    n: int

    @property
    def curve(self) -> tuple[str, str]:
        """The name of its curve and figure."""
        return self.task, self.series


def _draw(paper: Paper, runs: Sequence[StoredRun]) -> Drawing:

    points = [asdict(point) for point in _all_points(runs)]
    return transfer_figures(points, TITLES, label(runs[0].header))


@table(
    "hidden_transfer/figures",
    recipe=(*FIRST, *SECOND, EXITS, SIMILAR, DRAFTS),
    tasks=TASKS,
    draw=_draw,
)
def hidden_transfer_figures(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The points of all curves, and what the paper says of them."""
    points = _all_points(runs)
    columns = ("figure", "task", "series", "layer", "distance", "k", "value", "n")
    data = Sheet(
        "Figures 3 to 7: points",
        columns,
        tuple(tuple(getattr(point, name) for name in columns) for point in points),
        notes=NOTES,
    )
    drawn = [_accuracies(figure, points) for figure in ("3", "5", "6", "7")]
    shown = (*filter(None, (*drawn, _closeness(points))), _statements(paper, points))
    return TableSheets(data, shown)


NOTES = (
    "Accuracy: share of positions whose token is among the first k guesses at the distance; 1 is "
    "the token after the model's own next one. On the model's greedy outputs, at every place.",
    "The values of the paper's curves are not known: only what they show can be compared.",
)


def _all_points(runs: Sequence[StoredRun]) -> list[CurvePoint]:
    """The points of all runs, of which there must be some."""
    points = [point for run in runs for point in _points(run)]
    if not points:
        raise DataError(
            "none of these runs probed drafts or similarity; it takes `ppdbench probe --what "
            "drafts` and `--what similarity` with --method hidden-transfer"
        )
    return points


def _points(run: StoredRun) -> list[CurvePoint]:
    kind = run.header.kind
    if kind == "similarity":
        return [
            CurvePoint("4", s.task, PLAIN, s.layer, s.step, None, s.similarity, s.n)
            for s in similarities(run.samples)
            if s.task != ALL
        ]
    if kind != "drafts":
        return []
    names = {label: _named(run, label) for label in run.header.methods}
    return [
        CurvePoint(figure, a.task, series, layer, a.distance, a.k, a.accuracy, a.n)
        for a in accuracies(run.samples)
        if a.task != ALL and a.method in names
        for figure, series, layer in names[a.method]
        if figure != "6" or a.distance == 2
    ]


def _named(run: StoredRun, label: str) -> list[tuple[str, str, int | None]]:
    """Name the figures that a method's guesses stand in, their names there, and the layer."""
    about, facts = run.header.methods[label], run.header.facts.get(label, {})
    if about.name == "medusa":
        after = facts.get("options", {}).get("after", 0)
        return [("3", EARLY if after else HEADS, after or None)]
    if about.name != OWN:
        return []
    layers = facts["layers"]
    if about.options["masked"]:
        return [("7", MASKED, None)]
    if "/layer-" in str(about.options["addon"]):
        figure = "5" if len(layers) == 1 else "6"
        return [(figure, f"step {len(layers)}", layers[-1])]
    return [("3", PLAIN, None), ("7", PLAIN, None)]


def _accuracies(figure: str, points: Sequence[CurvePoint]) -> Sheet | None:
    """A figure of accuracies: a row for each curve and distance, or layer."""
    cells: dict[CurvePlace, dict[int, float]] = {}
    for p in points:
        if p.figure == figure and p.k is not None:
            cells.setdefault((p.task, p.series, p.layer, p.distance), {})[p.k] = p.value
    if not cells:
        return None
    return Sheet(
        f"Figure {figure}: {TITLES[figure]}, in %",
        ("task", "series", "layer", "distance", *(f"k={k}" for k in SHOWN)),
        tuple((*names, *(cells[names][k] for k in SHOWN)) for names in sorted(cells, key=_order)),
        percent=frozenset(f"k={k}" for k in SHOWN),
    )


def _order(place: CurvePlace) -> tuple[str, str, int, int]:
    """The order of rows; curves of no layer come first."""
    task, series, layer, distance = place
    return task, series, layer or 0, distance


def _closeness(points: Sequence[CurvePoint]) -> Sheet | None:
    rows = [(p.task, p.distance, p.layer, p.value) for p in points if p.figure == "4"]
    if not rows:
        return None
    head = ("task", "step", "layer", "cosine")
    return Sheet(f"Figure 4: {TITLES['4']}", head, tuple(rows), digits={"cosine": 3})


TITLES = {
    "3": "draft accuracy by method and distance",
    "4": "closeness of pseudo states to true ones",
    "5": "accuracy of the first step by its layer",
    "6": "accuracy of the second step by its layer",
    "7": "accuracy with and without the pseudo states of earlier steps",
}


# What the paper says, and what our points say of it: None where they say nothing.


def _best(points: Sequence[CurvePoint]) -> bool | None:
    """True if hidden transfer's first guess is right most often, at every distance."""
    by_place = _by(points, "3", lambda p: (p.task, p.distance), lambda p: p.series)
    judged = [of[PLAIN] >= max(of.values()) for of in by_place.values() if {PLAIN, HEADS} <= {*of}]
    return all(judged) if judged else None


def _rises(points: Sequence[CurvePoint]) -> bool | None:
    """True if closeness is larger at the end than where a step began, for every step."""
    by_step = _by(points, "4", lambda p: (p.task, p.distance), lambda p: p.layer)
    return all(of[max(of)] > of[min(of)] for of in by_step.values()) if by_step else None


def _falls(figure: str) -> Callable[[Sequence[CurvePoint]], bool | None]:
    """Return a test: does accuracy fall more from the middle of the layers on than up to there?"""

    def judge(points: Sequence[CurvePoint]) -> bool | None:
        by_task = _by(points, figure, lambda p: p.task, lambda p: p.layer)
        judged = []
        for of in by_task.values():
            values = [of[layer] for layer in sorted(of)]
            if len(values) > 2:
                falls = [before - after for before, after in pairwise(values)]
                half = len(falls) // 2
                judged.append(sum(falls[half:]) > sum(falls[:half]))
        return all(judged) if judged else None

    return judge


def _masking_costs(points: Sequence[CurvePoint]) -> bool | None:
    """True if the second step is right less often when it may not see the first."""
    second = [p for p in points if p.distance == 2]
    by_task = _by(second, "7", lambda p: p.task, lambda p: p.series)
    judged = [of[MASKED] < of[PLAIN] for of in by_task.values() if {MASKED, PLAIN} <= {*of}]
    return all(judged) if judged else None


def _by(
    points: Sequence[CurvePoint],
    figure: str,
    group: Callable[[CurvePoint], Any],
    name: Callable[[CurvePoint], Any],
) -> dict[Any, dict[Any, float]]:
    """First guesses (or cosines) of a figure by group, then by name."""
    found: dict[Any, dict[Any, float]] = {}
    for point in points:
        if point.figure == figure and point.k in (None, 1):
            found.setdefault(group(point), {})[name(point)] = point.value
    return found


JUDGES: Mapping[tuple[str, str], Callable[[Sequence[CurvePoint]], bool | None]] = {
    ("figure 3", "setup"): _best,
    ("figure 4", "qualitative"): _rises,
    ("figure 5", "qualitative"): _falls("5"),
    ("figure 6", "qualitative"): _falls("6"),
    ("figure 7", "qualitative"): _masking_costs,
}
ANSWERS = {True: "holds", False: "does not hold", None: None}


def _statements(paper: Paper, points: Sequence[CurvePoint]) -> Sheet:
    rows = []
    for row in paper["rows"]:
        judge = JUDGES.get((row["item"], row["kind"]))
        value = row["value"]
        printed = None if value is None else str(value)
        rows.append(
            (row["item"], row["statement"], printed, ANSWERS[judge(points)] if judge else None)
        )
    return Sheet(
        "What the text says",
        ("item", "statement", "paper", "here"),
        tuple(rows),
        notes=(
            *NOTES,
            "here: whether it holds for all of our curves. Figure 3: at every distance; 4: at the "
            "last layer against where a step begins; 5 and 6: the second half of the layers "
            "against the first; 7: at distance 2. Numbers of the protocol are the paper's; 1 is "
            "what `ppdbench tree build --latency` measures.",
        ),
    )
