"""Table 3 of "Predictive Pipelined Decoding": latency measured with and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

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

Key = tuple[str, str, int]  # task, form, k
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
            *([UNCLAIMED] if any(k and of.speedup is None for (*_, k), of in ours.items()) else []),
        ),
    )


def _rows(
    printed: Mapping[tuple[str, int], LatencyRow], ours: Mapping[Key, LatencyRow]
) -> list[ComparedRow]:
    """Put every form that was run beside what was printed."""
    ks = sorted({k for _, _, k in ours} | {k for _, k in printed})
    rows = []
    for form in sorted({form for _, form, _ in ours}):
        for task in TASKS.values():
            for k in ks:
                theirs, measured = printed.get((task, k)), ours.get((task, form, k))
                if theirs or measured:
                    names = (task, form if k else "greedy", k)
                    rows.append(ComparedRow(names, _values(theirs), _values(measured)))
    return rows


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


def _ours(runs: Sequence[StoredRun]) -> dict[Key, LatencyRow]:
    """Read the runs with units, by task, form and k; greedy on one unit as k = 0."""
    found: dict[Key, LatencyRow] = {}
    for run in runs:
        for summary in summarize(run.header, add_up(run.samples), scores=False):
            if summary.get("units", 1) < 2 or summary["greedy_ms_per_token"] is None:
                continue
            k = run.header.facts[summary["label"]]["k"]
            task, form = summary["task"], summary["form"]
            greedy = _seconds(summary["greedy_prefill_ms"], summary["greedy_ms_per_token"])
            seconds = _seconds(summary["prefill_ms"], summary["ms_per_token"])
            # None where it may not be claimed.
            speedup = greedy / seconds if summary["speedup_one_unit"] else None
            found[task, form, 0] = LatencyRow(None, greedy, None, None)
            found[task, form, k] = LatencyRow(
                summary["p"], seconds, speedup, summary["predicted_speedup"]
            )
    return found


def _seconds(prefill_ms: float, ms_per_token: float) -> float:
    """Return the seconds for an output of 128 tokens, the first of which the prefill gives."""
    return 1e-3 * (prefill_ms + (TOKENS - 1) * ms_per_token)
