"""Tables of "Predictive Pipelined Decoding: A Compute-Latency Trade-off for Exact LLM Decoding"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench import theory
from ppdbench.bench.summary import summarize
from ppdbench.errors import DataError
from ppdbench.report.export import Cell, Sheet
from ppdbench.store import StoredRun
from ppdbench.tables.base import Paper, settings, table

TASKS = {"cnn_dm": "cnn_dailymail", "squad": "squad"}  # the paper's names, and ours
TOKENS = 128  # latency is for so many


@dataclass(frozen=True, slots=True)
class Timed:
    """One row of Table 3: a match rate, the seconds for the output, the gain over greedy."""

    p: float | None
    seconds: float
    speedup: float | None
    promised: float | None


@table(
    "ppd/3",
    needs="ppdbench bench --method ppd:form=split,k=1 --method ppd:form=split,k=3 "
    "--task cnn_dailymail --task squad --max-new-tokens 128",
)
def measured_latency(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:
    """Latency for 128 tokens, with and without PPD: the paper's, and each form that was run."""
    ours = _ours(runs)
    if not ours:
        raise DataError(
            "none of these runs has ppd units on cnn_dailymail or squad; table ppd/3 needs "
            "form=split or form=replicated, whose latency is measured"
        )
    printed = _printed(paper)
    forms = sorted({form for _, form, _ in ours})
    rows: list[tuple[Cell, ...]] = []
    for form in forms:
        ks = sorted({k for _, of, k in ours if of == form})
        for task in TASKS.values():
            for k in ks:
                found, theirs = ours.get((task, form, k)), printed.get((task, k))
                if found or theirs:
                    rows.append(_row(task, form if k else "greedy", k, theirs, found))
    return Sheet(
        "Table 3: measured latency of the implementation",
        (
            "task",
            "method",
            "k",
            "p paper",
            "p",
            "s paper",
            "s",
            "tok/s paper",
            "tok/s",
            "speedup paper",
            "speedup",
            "theory paper",
            "theory",
        ),
        tuple(rows),
        notes=(
            *settings(paper, runs),
            f"Seconds for {TOKENS} tokens, prompt included; speedup over greedy decoding on one "
            "unit; theory: equation 3 with the p beside it. The paper: one replica per candidate.",
        ),
        digits={"p paper": 3, "p": 3, "s paper": 2, "s": 2, "tok/s paper": 1, "tok/s": 1},
    )


def _row(
    task: str, method: str, k: int, theirs: Timed | None, ours: Timed | None
) -> tuple[Cell, ...]:
    pairs: list[Cell] = [task, method, k]
    for name in ("p", "seconds"):
        pairs += [getattr(theirs, name, None), getattr(ours, name, None)]
    pairs += [TOKENS / side.seconds if side else None for side in (theirs, ours)]
    for name in ("speedup", "promised"):
        pairs += [_times(getattr(side, name, None)) for side in (theirs, ours)]
    return tuple(pairs)


def _times(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}x"


def _printed(paper: Paper) -> dict[tuple[str, int], Timed]:
    """The paper's rows by task and k, greedy being k = 0."""
    greedy = {row["task"]: row["latency_s"] for row in paper["rows"] if row["k"] == 0}
    found = {}
    for row in paper["rows"]:
        p, seconds = row["match_rate"], row["latency_s"]
        found[TASKS[row["task"]], row["k"]] = Timed(
            p,
            seconds,
            greedy[row["task"]] / seconds if row["k"] else None,
            None if p is None else 1 / theory.latency_per_token(2, 1, p),
        )
    return found


def _ours(runs: Sequence[StoredRun]) -> dict[tuple[str, str, int], Timed]:
    """What runs with units measured, by task, form and k; greedy on one unit as k = 0."""
    found: dict[tuple[str, str, int], Timed] = {}
    for run in runs:
        for summary in summarize(run.header, run.samples, scores=False):
            if summary.get("units", 1) < 2 or summary["task"] not in TASKS.values():
                continue
            k = run.header["facts"][summary["label"]]["k"]
            task, form = summary["task"], summary["form"]
            found[task, form, k] = timed = _timed(summary)
            if timed.speedup is not None:
                steps = summary["ms_per_token"] * timed.speedup
                found[task, form, 0] = Timed(
                    None, _seconds(summary["prefill_ms"], steps), None, None
                )
    return found


def _timed(summary: Mapping[str, Any]) -> Timed:
    return Timed(
        summary["p"],
        _seconds(summary["prefill_ms"], summary["ms_per_token"]),
        summary["speedup_one_unit"],
        summary["predicted_speedup"],
    )


def _seconds(prefill_ms: float, ms_per_token: float) -> float:
    """For an output of 128 tokens, the first of which the prefill gives."""
    return 1e-3 * (prefill_ms + (TOKENS - 1) * ms_per_token)
