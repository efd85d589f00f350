"""Theory as tables: from given numbers, from a probe run, and the paper's Figures 3 and 4.

A probe run gives two latencies for each setting. One follows from the match rate alone, as
Theorem 4.1 has it; the other counts the runs in every recorded sequence of matches. Where
they differ, matches were not independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ppdbench import theory
from ppdbench.bench.claims import LEAST_EXAMPLES
from ppdbench.errors import ConfigError, DataError, counted
from ppdbench.files.papers import our_task
from ppdbench.files.publications import PPD
from ppdbench.probe.ranks import RANKS_OF_HEAD, Group, StoredRanks
from ppdbench.report.probe_tables import MOST_ROWS, spread_layers
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.records import ProbedSample, probing
from ppdbench.runs.store import StoredRun
from ppdbench.runs.unfinished import unfinished
from ppdbench.stats import grouped

DEFAULT_KS = (1, 3, 5)

TOO_FEW = (
    f"Fewer than {LEAST_EXAMPLES} examples: these match rates, and what follows from them, promise "
    "nothing for others."
)

SOME = (
    "Some layers from half on, spread evenly, and the one of the highest speedup; all: --format "
    "csv, json."
)

Series = Mapping[str, Sequence[theory.FigurePoint]]
Marks = npt.NDArray[np.bool_]  # [example, position]


@dataclass(frozen=True, slots=True)
class TheoryRow:
    """One layer of one task in theory; latencies are None where PPD cannot exit."""

    task: str
    layer: int
    k: int
    head: str
    target: str
    examples: int
    tokens: int
    """Over all examples; latencies are per example."""
    match_rate: float
    latency_per_token: float | None = None
    speedup: float | None = None
    compute_per_time_unit: float | None = None
    compute_per_token: float | None = None
    expected_latency: float | None = None
    """Theorem 4.1 with the measured match rate."""
    recorded_latency: float | None = None
    """From the recorded matches themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The rows of a run that are asked for; None means all."""

    exit_after: int | None = None
    ks: tuple[int, ...] | None = None
    head: str | None = None
    task: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The rows of a run, and how many of its examples could not be used."""

    run: str
    n_layers: int
    rows: tuple[TheoryRow, ...]
    failed: int
    unfinished: str | None = None  # what is missing, in a sentence

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that a reader of the rows needs."""
        notes = [
            "theorem: expected layer-times per example (Theorem 4.1); recorded: the same, "
            "counted from the matches themselves. Greedy decoding is 1 in latency and compute. "
            "Latency and compute of a token are limits for long outputs, the speedup is that of "
            "outputs as long as these.",
        ]
        if any(row.latency_per_token is None for row in self.rows):
            notes.append(f"-: {_reason_below_half(self.n_layers)}")
        if self.failed:
            examples = "examples are" if self.failed > 1 else "example is"
            notes.append(f"{self.failed} failed {examples} left out.")
        if any(row.examples < LEAST_EXAMPLES for row in self.rows):
            notes.append(TOO_FEW)
        if self.unfinished:
            notes.append(self.unfinished)
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The rows under the names of their fields."""
        return {
            "run": self.run,
            "n_layers": self.n_layers,
            "failed": self.failed,
            "unfinished": self.unfinished,
            "rows": [asdict(row) for row in self.rows],
        }


def measured_rows(
    run: StoredRun, wanted: RowFilter, ranks: StoredRanks | None = None
) -> MeasuredRows:
    """Match rates of a probe run, and what theory makes of them; `ranks` where they are there."""
    if run.header.kind != "probe":
        raise DataError(
            f"{run.path} holds a {run.header.kind} run; theory needs one of `ppdbench probe`"
        )
    n_layers = run.header.model.n_layers
    if wanted.exit_after is not None:
        theory.check_exit(n_layers, wanted.exit_after)
    probed = (s for s in run.samples if isinstance(s, ProbedSample) and s.method == "probe")
    ranks = ranks or StoredRanks(sample for sample in probed if sample.ranks)
    if not ranks.groups:
        raise DataError(f"{run.path} has no probe samples; finish it with --resume")
    _check_present(ranks, wanted)
    ks = _ks(run, wanted)
    rows = [
        row
        for (task, target) in ranks.groups
        if wanted.task in (None, task) and wanted.target in (None, target)
        for row in _rows_of_group(ranks, (task, target), n_layers, ks, wanted)
    ]
    if not rows:
        raise DataError(f"{run.path}: no layer before the last was probed")
    used = sum(map(len, ranks.groups.values()))
    lacking = unfinished(run.header, run.samples)
    return MeasuredRows(str(run.path), n_layers, tuple(rows), len(run.samples) - used, lacking)


def _ks(run: StoredRun, wanted: RowFilter) -> tuple[int, ...]:
    """The ks asked for, or those the run was made for: ranks answer for every k."""
    ks = wanted.ks or tuple(probing(run.header).config.ks or DEFAULT_KS)
    if min(ks) < 1:
        raise ConfigError(f"k={min(ks)}: PPD launches candidates; use 1 or more")
    return ks


def _check_present(ranks: StoredRanks, wanted: RowFilter) -> None:
    """Refuse choices that would leave nothing, naming what the run has."""
    tasks, targets = zip(*ranks.groups, strict=True)
    probed = {
        head: {n for group in ranks.groups for n in ranks.layers(group, field)}
        for head, field in RANKS_OF_HEAD.items()
    }
    heads = [head for head, layers in probed.items() if layers]
    layers = sorted(set().union(*probed.values()))
    for name, asked, present in (
        ("task", wanted.task, tasks),
        ("target", wanted.target, targets),
        ("head", wanted.head, heads),
        ("exit-after", wanted.exit_after, layers),
    ):
        if asked is not None and asked not in present:
            known = ", ".join(map(str, dict.fromkeys(present)))
            raise ConfigError(f"--{name} {asked}: this run has {known}")


def _rows_of_group(
    all_ranks: StoredRanks, group: Group, n_layers: int, ks: Sequence[int], wanted: RowFilter
) -> list[TheoryRow]:
    rows = []
    for head, key in RANKS_OF_HEAD.items():
        if wanted.head not in (None, head):
            continue
        for layer in all_ranks.layers(group, key):
            # The last layer always agrees with itself and leaves nothing to run ahead of.
            if layer == n_layers or wanted.exit_after not in (None, layer):
                continue
            ranks, known = all_ranks.matrix(group, key, layer)
            for k in ks:
                matches = (ranks < k) & known
                row = _matched(group, layer, k, head, matches, known)
                rows.append(_with_theory(row, matches, known, n_layers))
    return rows


def _matched(
    group: Group, layer: int, k: int, head: str, matches: Marks, known: Marks
) -> TheoryRow:
    (task, target), tokens = group, int(known.sum())
    rate = int(matches.sum()) / tokens
    return TheoryRow(task, layer, k, head, target, len(known), tokens, rate)


def _with_theory(row: TheoryRow, matches: Marks, known: Marks, n_layers: int) -> TheoryRow:
    """The row with its latencies, if PPD can exit after its layer."""
    layer, k, p = row.layer, row.k, row.match_rate
    if not _can_exit(n_layers, layer):
        return row
    # Examples differ in length, and the theorem is linear in it.
    lengths = Counter(known.sum(1).tolist())
    expected = sum(
        n * theory.expected_latency(n_layers, layer, p, length) for length, n in lengths.items()
    )
    # A run ends with a miss, but for the last one, which ends with its example.
    runs = row.examples + int((~matches[:, :-1] & known[:, 1:]).sum())
    recorded = theory.latency_of_runs(row.tokens, runs, n_layers, layer)
    return replace(
        row,
        latency_per_token=theory.latency_per_token(n_layers, layer, p),
        speedup=n_layers * row.tokens / expected,
        compute_per_time_unit=theory.compute_per_time_unit(n_layers, layer, k, p),
        compute_per_token=theory.compute_per_token(n_layers, layer, k, p),
        expected_latency=expected / row.examples,
        recorded_latency=recorded / row.examples,
    )


def _can_exit(n_layers: int, layer: int) -> bool:
    return n_layers <= 2 * layer < 2 * n_layers


def _reason_below_half(n_layers: int) -> str:
    deepest = (n_layers - 1) // 2
    try:
        theory.check_exit(n_layers, deepest)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"a layer below half of {n_layers} was accepted")


def run_sheet(measured: MeasuredRows) -> Sheet:
    """One table with a column for everything, for files."""
    header = tuple(TheoryRow.__dataclass_fields__)
    return Sheet(
        title="Theory of Predictive Pipelined Decoding from measured match rates",
        header=header,
        rows=tuple(tuple(getattr(row, name) for name in header) for row in measured.rows),
        notes=measured.notes,
        digits={"expected_latency": 1, "recorded_latency": 1},
        percent=frozenset({"match_rate"}),
    )


# Headings over several lines are what keeps the terminal's table within 80 columns.
TERMINAL_COLUMNS = {
    "layer": "layer",
    "head": "head",
    "k": "k",
    "match_rate": "match\nrate",
    "latency_per_token": "latency\n/token",
    "speedup": "speedup",
    "compute_per_time_unit": "compute\n/time",
    "compute_per_token": "compute\n/token",
    "expected_latency": "latency\ntheorem",
    "recorded_latency": "latency\nrecorded",
}


def run_sheets(measured: MeasuredRows, *, whole: bool = False) -> list[Sheet]:
    """A table for each task and target, for terminals; notes stand below the last.

    Of many layers some are shown, unless it is `whole`.
    """
    groups = grouped(measured.rows, "task", "target")
    shown = {group: rows if whole else telling_rows(rows) for group, rows in groups.items()}
    sheets = [_group_sheet(task, target, rows) for (task, target), rows in shown.items()]
    told = replace(measured, rows=tuple(row for rows in shown.values() for row in rows))
    fewer = (SOME,) if len(told.rows) < len(measured.rows) else ()
    return [*sheets[:-1], replace(sheets[-1], notes=(*told.notes, *fewer))]


def telling_rows(rows: Sequence[TheoryRow]) -> list[TheoryRow]:
    """The rows of one task and target, or of many layers those that tell most.

    These are some layers from half on, spread evenly, and the one that promises most.
    """
    return [
        row
        for head in dict.fromkeys(row.head for row in rows)
        for row in _telling([row for row in rows if row.head == head])
    ]


def _telling(rows: Sequence[TheoryRow]) -> list[TheoryRow]:
    speedups = {row: row.speedup for row in rows if row.speedup is not None}
    if len({row.layer for row in rows}) <= MOST_ROWS or not speedups:
        return list(rows)
    layers = sorted({row.layer for row in speedups})
    best = max(speedups, key=speedups.__getitem__).layer
    room = max(3, MOST_ROWS // len({row.k for row in rows}))
    shown = {best, *spread_layers(layers, room - 1)}
    return [row for row in speedups if row.layer in shown]


def _group_sheet(task: str, target: str, rows: Sequence[TheoryRow]) -> Sheet:
    first = rows[0]
    heads = TERMINAL_COLUMNS
    examples, tokens = counted(first.examples, "example"), counted(first.tokens, "token")
    return Sheet(
        title=f"{task}, {target}: {examples}, {tokens}",
        header=tuple(heads.values()),
        rows=tuple(tuple(getattr(row, name) for name in heads) for row in rows),
        digits={
            heads["expected_latency"]: 1,
            heads["recorded_latency"]: 1,
            heads["speedup"]: 3,
        },
        percent=frozenset({heads["match_rate"]}),
        groups=(3, *[1] * (len(heads) - 3)),
    )


def given_sheet(
    title: str,
    tokens: int,
    tradeoff: theory.Tradeoff,
    simulation: theory.Simulation | None,
) -> Sheet:
    """Show what the formulas say, each with what it means."""
    rows: list[tuple[Cell, ...]] = [
        ("latency per token", tradeoff.latency_per_token, "time, greedy = 1 (equation 3)"),
        (
            "compute per time unit",
            tradeoff.compute_per_time_unit,
            "processes busy, greedy = 1 (equation 5)",
        ),
        ("compute per token", tradeoff.compute_per_token, "layers run, greedy = 1 (equation 6)"),
        ("expected latency", tradeoff.expected_latency, f"layer-times, {tokens} tokens (Thm 4.1)"),
        ("expected compute", tradeoff.expected_compute, f"layers run, {tokens} tokens"),
        ("speedup", tradeoff.speedup, f"over greedy, {tokens} tokens"),
    ]
    if simulation:
        rows += _simulation_rows(simulation)
    return Sheet(
        title=title,
        header=("quantity", "value", "meaning"),
        rows=tuple(rows),
        prose="meaning",
        notes=(
            "Equations 3, 5 and 6 are limits for long outputs; the rest is for this length.",
            f"p: how often the candidates hold the token that comes. The paper: {PPD}.",
        ),
    )


def _simulation_rows(simulation: theory.Simulation) -> list[tuple[Cell, ...]]:
    return [
        (
            f"simulated {name}",
            value,
            f"mean of {simulation.runs} runs, standard error {error:.2f}",
        )
        for name, value, error in (
            ("latency", simulation.latency, simulation.latency_error),
            ("compute", simulation.compute, simulation.compute_error),
        )
    ]


def given_json(
    tradeoff: theory.Tradeoff, simulation: theory.Simulation | None, seed: int
) -> dict[str, Any]:
    """The formulas' values, and the simulation's if there was one."""
    value: dict[str, Any] = {**asdict(tradeoff), "speedup": tradeoff.speedup}
    if simulation:
        value["simulation"] = {**asdict(simulation), "seed": seed}
    return value


def paper_points() -> list[theory.FigurePoint]:
    """The eighteen points of Figures 3 and 4, under this project's names of the tasks."""
    return [
        replace(point, task=our_task(point.task))
        for point in theory.figure_points(theory.paper_match_rates())
    ]


def measured_points(measured: MeasuredRows) -> tuple[list[theory.FigurePoint], str]:
    """A run's points for the figures, and words for which layer and target they are of.

    The figures have room for one layer and one target: the earliest layer that PPD can exit
    after, which is what the paper took, and greedy where the run has it.
    """
    usable = [row for row in measured.rows if row.latency_per_token is not None]
    if not usable:
        raise DataError(
            f"{measured.run}: no probed layer is in {(measured.n_layers + 1) // 2}.."
            f"{measured.n_layers - 1}, where PPD can exit; probe one of them"
        )
    layer = min(row.layer for row in usable)
    targets = dict.fromkeys(row.target for row in usable)
    target = "greedy" if "greedy" in targets else next(iter(targets))
    rates = [
        theory.MatchRate(row.task, row.k, row.head == "Y", row.match_rate)
        for row in usable
        if (row.layer, row.target) == (layer, target)
    ]
    points = theory.figure_points(rates, n_layers=measured.n_layers, exit_after=layer)
    return points, f"measured: layer {layer} of {measured.n_layers}, {target}"


FIGURE_COLUMNS = {
    "task": "task",
    "head": "head",
    "k": "k",
    "source": "source",
    "match_rate": "match\nrate",
    "latency_per_token": "latency\n/token",
    "compute_per_time_unit": "compute\n/time unit",
    "compute_per_token": "compute\n/token",
}


def figure_sheet(series: Series, notes: Sequence[str] = (), *, terminal: bool = False) -> Sheet:
    """Figures 3 and 4 as one table, points of the same task, head and k below each other."""
    columns = {name: heading if terminal else name for name, heading in FIGURE_COLUMNS.items()}
    return Sheet(
        title="Figures 3 and 4: latency per token against compute",
        header=tuple(columns.values()),
        rows=tuple(tuple(row[name] for name in columns) for row in figure_json(series)),
        notes=(
            "Latency is y in both; compute per time unit is x in Figure 3, compute per token in "
            "Figure 4. Greedy decoding is 1 in all three.",
            "paper: layer 20 of 40, greedy; Vicuna-13B, Table 2.",
            *notes,
        ),
        percent=frozenset({columns["match_rate"]}),
    )


def figure_json(series: Series) -> list[dict[str, Any]]:
    """The points of Figures 3 and 4, each with where it comes from."""
    return [
        {
            "source": name,
            "task": point.task,
            "head": "Y" if point.trained else "N",
            "k": point.k,
            "match_rate": point.match_rate,
            "latency_per_token": point.latency_per_token,
            "compute_per_time_unit": point.compute_per_time_unit,
            "compute_per_token": point.compute_per_token,
        }
        for name, point in _by_task(series)
    ]


def _by_task(series: Series) -> list[tuple[str, theory.FigurePoint]]:
    points = [(name, point) for name, points in series.items() for point in points]
    tasks = list(dict.fromkeys(point.task for _, point in points))
    # Stable, so that the sources keep their order within one task, head and k.
    return sorted(points, key=lambda it: (tasks.index(it[1].task), it[1].trained, it[1].k))
