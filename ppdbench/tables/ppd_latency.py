"""Table 3 of "Predictive Pipelined Decoding": latency measured with and without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from ppdbench import theory
from ppdbench.bench.claims import LEAST_EXAMPLES
from ppdbench.bench.summary import summarize
from ppdbench.bench.sums import add_up
from ppdbench.errors import DataError
from ppdbench.files.papers import Paper
from ppdbench.report.sheet import Cell
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.compared import ComparedRow, Quantity, compared
from ppdbench.tables.matches import TASKS as ALL_TASKS
from ppdbench.tables.recipe import RecipeStep

TASKS = {name: ALL_TASKS[name] for name in ("cnn_dm", "squad")}  # as the paper orders them
TOKENS = 128  # latency is for so many

LATENCY = RecipeStep(
    "ppd-latency",
    "bench --method ppd:form=split,k=1 --method ppd:form=split,k=3 --task cnn_dailymail "
    f"--task squad --max-new-tokens {TOKENS}",
)

Place = tuple[str, str]  # task and form
UNCLAIMED = (
    "No speedup where an output differs from greedy decoding's, or fewer than "
    f"{LEAST_EXAMPLES} examples were timed."
)

QUANTITIES = (
    Quantity("p", "match rate"),
    Quantity("seconds", "s", 2),
    Quantity("tokens_per_s", "tok/s", 1),
    Quantity("speedup", "speedup", 2),
    Quantity("theory", "theory", 2),
)


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One row of Table 3: a match rate, the seconds for the output, the gain over greedy."""

    p: float | None
    seconds: float
    speedup: float | None
    theory: float | None

    def values(self) -> dict[str, Cell]:
        """The numbers by the names of their quantities."""
        return {**asdict(self), "tokens_per_s": TOKENS / self.seconds}


@dataclass(frozen=True, slots=True)
class MeasuredForm:
    """One run of one form on one task: greedy decoding on one unit, and the units by k."""

    greedy: LatencyRow
    by_k: dict[int, LatencyRow]


@table("ppd/3", recipe=(LATENCY,), tasks=TASKS.values())
def measured_latency(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Latency for 128 tokens, with and without PPD: the paper's, and each form that was run."""
    ours = _ours(runs)
    if not ours:
        raise DataError(
            "none of these runs has ppd units on cnn_dailymail or squad; table ppd/3 needs "
            "form=split or form=replicated, whose latency is measured"
        )
    return compared(
        "Table 3: measured latency of the implementation",
        ("task", "form", "k"),
        QUANTITIES,
        _rows(_printed(paper), ours),
        notes=(
            f"s: seconds for {TOKENS} tokens, prompt included; speedup: those of greedy decoding "
            "on one unit over these; theory: equation 3 with the match rate beside it. The paper: "
            "one replica per candidate.",
            *_extrapolated(runs),
            *([UNCLAIMED] if any(row.speedup is None for row in _with_units(ours)) else []),
        ),
    )


def _extrapolated(runs: Sequence[StoredRun]) -> list[str]:
    """Say of outputs that were shorter what the seconds for so many tokens are."""
    lengths = [len(sample.output_ids) for run in runs for sample in run.samples]
    longest, usual = max(lengths), fmean(lengths)
    if usual >= TOKENS:
        return []
    how_long = f"{longest} tokens at most" if longest < TOKENS else f"{usual:.0f} tokens on average"
    return [f"Our outputs have {how_long}: s is what {TOKENS} would take at their pace."]


def _rows(
    printed: Mapping[tuple[str, int], LatencyRow], ours: Mapping[Place, Sequence[MeasuredForm]]
) -> list[ComparedRow]:
    """Put every form that was run beside what was printed."""
    ks = sorted({k for of in ours.values() for run in of for k in run.by_k})
    rows: list[ComparedRow] = []
    for form in sorted({form for _, form in ours}):
        for task in TASKS.values():
            found = ours.get((task, form), ())
            rows += _greedy_rows(task, printed.get((task, 0)), found)
            for k in sorted({*ks, *(k for _, k in printed if k)}):
                theirs = printed.get((task, k))
                measured = next((run.by_k[k] for run in found if k in run.by_k), None)
                if theirs or measured:
                    rows.append(ComparedRow((task, form, k), _values(theirs), _values(measured)))
    return rows


def _greedy_rows(
    task: str, theirs: LatencyRow | None, found: Sequence[MeasuredForm]
) -> Iterator[ComparedRow]:
    """One row for each run, as a speedup is over the greedy decoding of its own."""
    if not found and theirs:
        yield ComparedRow((task, "greedy", 0), _values(theirs), {})
    for run in found:
        beside = f" (for k={','.join(map(str, run.by_k))})" if len(found) > 1 else ""
        yield ComparedRow((task, f"greedy{beside}", 0), _values(theirs), run.greedy.values())


def _values(timed: LatencyRow | None) -> dict[str, Cell]:
    return {} if timed is None else timed.values()


def _printed(paper: Paper) -> dict[tuple[str, int], LatencyRow]:
    """The paper's rows by task and k, greedy being k = 0."""
    greedy = {row["task"]: row["latency_s"] for row in paper["rows"] if row["k"] == 0}
    found = {}
    for row in paper["rows"]:
        p, seconds = row["match_rate"], row["latency_s"]
        found[TASKS[row["task"]], row["k"]] = LatencyRow(
            p,
            seconds,
            greedy[row["task"]] / seconds if row["k"] else None,
            None if p is None else 1 / theory.latency_per_token(2, 1, p),
        )
    return found


def _ours(runs: Sequence[StoredRun]) -> dict[Place, list[MeasuredForm]]:
    """Read the runs with units, by task and form: what one unit took, and units by k."""
    found: dict[Place, list[MeasuredForm]] = {}
    for run in runs:
        of_run: dict[Place, MeasuredForm] = {}
        for summary in summarize(run.header, add_up(run.samples), scores=False):
            if summary.get("units", 1) < 2 or summary["greedy_ms_per_token"] is None:
                continue
            greedy = _seconds(summary["greedy_prefill_ms"], summary["greedy_ms_per_token"])
            seconds = _seconds(summary["prefill_ms"], summary["ms_per_token"])
            # None where it may not be claimed.
            speedup = greedy / seconds if summary["speedup_one_unit"] else None
            alone = LatencyRow(None, greedy, None, None)
            measured = of_run.setdefault(
                (summary["task"], summary["form"]), MeasuredForm(alone, {})
            )
            measured.by_k[run.header.facts[summary["label"]]["k"]] = LatencyRow(
                summary["p"], seconds, speedup, summary["predicted_speedup"]
            )
        for place, measured in of_run.items():
            found.setdefault(place, []).append(measured)
    return found


def _with_units(ours: Mapping[Place, Sequence[MeasuredForm]]) -> Iterator[LatencyRow]:
    for of in ours.values():
        for run in of:
            yield from run.by_k.values()


def _seconds(prefill_ms: float, ms_per_token: float) -> float:
    """Return the seconds for an output of 128 tokens, the first of which the prefill gives."""
    return 1e-3 * (prefill_ms + (TOKENS - 1) * ms_per_token)
