"""Match rates of stored probes beside those that the paper on pipelined decoding prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.papers import Paper, our_task
from ppdbench.probe.ranks import StoredRanks
from ppdbench.probe.summary import INTERVAL, Rate, match_rates
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.records import ProbedSample
from ppdbench.runs.store import StoredRun
from ppdbench.tables.recipe import RecipeStep, nearest_layers

# The paper's tasks under our names, in its order, with the positions of one bucket.
TASKS = {name: our_task(name) for name in ("squad", "wmt", "cnn_dm")}
BUCKETS = {"squad": 2, "wmt_en_fr": 16, "cnn_dailymail": 16}

MATCHES = RecipeStep(
    "ppd-matches",
    "probe --task squad --task wmt_en_fr --task cnn_dailymail "
    "--layers {10/40},{20/40},{30/40},{35/40},{37/40} -k 1,3,5 --head {heads}",
)

HEAD = {False: "N", True: "Y"}
HEADS = "head N: the model's own; Y: trained for the layer."
BESIDE = (
    "Ours stands beside the paper's layer that lies nearest as a share of all layers; a shallow "
    "model has none for some of them."
)
INTERVALS = f"low, high: {INTERVAL}."


@dataclass(frozen=True, slots=True)
class ComparedRate:
    """One match rate of the paper and what stands beside it; either may be missing."""

    task: str
    k: int
    head: str
    bucket: str
    layer_paper: int
    layer: int | None
    paper: float
    ours: Rate | None

    def measured(self, name: str) -> Cell:
        """Return a number of ours by its name."""
        value: Cell = getattr(self.ours, name, None)
        return value

    @property
    def difference(self) -> float | None:
        """The difference, ours less theirs."""
        return None if self.ours is None else self.ours.match_rate - self.paper


def probes(runs: Sequence[StoredRun], needs: str) -> list[ProbedSample]:
    """The samples of those runs that probed layers of the paper's tasks, each task from one."""
    found: list[ProbedSample] = []
    origin: dict[tuple[str, str], StoredRun] = {}
    for run in runs:
        for sample in run.samples:
            if not isinstance(sample, ProbedSample) or sample.task not in BUCKETS:
                continue
            key = sample.task, sample.target or "greedy"
            if origin.setdefault(key, run) is not run:
                raise DataError(
                    f"{key[0]} ({key[1]}) is in {origin[key].path} and in {run.path}; give one"
                )
            found.append(sample)
    if not found:
        raise DataError(
            f"none of these runs has match rates of {', '.join(BUCKETS)}; it takes ppdbench {needs}"
        )
    return found


def compared_rates(paper: Paper, runs: Sequence[StoredRun]) -> list[ComparedRate]:
    """Every match rate that the paper prints, with ours where there is one."""
    printed = paper["rows"]
    samples = probes(runs, MATCHES.command)
    ks = sorted({row["k"] for row in printed})
    greedy = StoredRanks(sample for sample in samples if (sample.target or "greedy") == "greedy")
    rates = match_rates(greedy, ks, BUCKETS)
    return _joined(printed, rates, paper["setting"]["layers"], our_depth(runs))


def our_depth(runs: Sequence[StoredRun]) -> int:
    """The number of our model's layers."""
    return runs[0].header.model.n_layers


def _joined(
    printed: Sequence[Mapping[str, Any]], rates: Sequence[Rate], of: int, depth: int
) -> list[ComparedRate]:
    theirs = sorted({row["layer"] for row in printed})
    layers = nearest_layers(theirs, of, sorted({r.layer for r in rates if r.layer < depth}), depth)
    by_key = {(r.task, r.layer, r.k, r.head, r.bucket): r for r in rates}
    found = []
    for row in printed:
        task, head, bucket = TASKS[row["task"]], HEAD[row["trained"]], row.get("bucket", "total")
        layer = layers.get(row["layer"])
        ours = None if layer is None else by_key.get((task, layer, row["k"], head, bucket))
        found.append(
            ComparedRate(task, row["k"], head, bucket, row["layer"], layer, row["match_rate"], ours)
        )
    return found


LONG: Mapping[str, Callable[[ComparedRate], Cell]] = {
    "task": lambda c: c.task,
    "head": lambda c: c.head,
    "k": lambda c: c.k,
    "bucket": lambda c: c.bucket,
    "layer paper": lambda c: c.layer_paper,
    "layer": lambda c: c.layer,
    "match rate paper": lambda c: c.paper,
    "match rate": lambda c: c.measured("match_rate"),
    "low": lambda c: c.measured("low"),
    "high": lambda c: c.measured("high"),
    "n": lambda c: c.measured("n"),
    "match rate diff": lambda c: c.difference,
}


def every_rate(title: str, compared: Sequence[ComparedRate]) -> Sheet:
    """Every number in a column of its own, for other programs."""
    rows = tuple(tuple(value(c) for value in LONG.values()) for c in compared)
    return Sheet(title, tuple(LONG), rows, notes=(HEADS, INTERVALS))


def percent_or_dash(value: float | None) -> str:
    """A share as it reads beside another one."""
    return "-" if value is None else f"{100 * value:.1f}"
