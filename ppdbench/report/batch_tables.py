"""Tables of runs that decode in batches: what all gain together, and what one user sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.counterparts import Beside
from ppdbench.bench.labels import APART, label_alone
from ppdbench.report import decode_tables, evidence
from ppdbench.report.sheet import Cell, Sheet

Summary = Mapping[str, Any]
SPEED = (
    "tokens/s: of all sequences of a batch together, while it was full. each: of one of them, as "
    "one user sees it. first ms: from taking a place to the first token. full: the share of the "
    "steps' time in which every place was taken; the rest does not count."
)
ALONE = "x alone: tokens/s over those of greedy decoding of one prompt after the other."
JOINED_APART = "Prompts joined in a pass of their own, between the steps of others."
JOINED_BESIDE = "Prompts joined {} rows at a time, beside the steps of others."
SAME_BATCH = (
    "Speedup: decode time of greedy in a batch of the same size over the method's, paired by "
    "example, 95% bootstrap. output: against greedy decoding of that prompt alone."
)
CROSSOVER = (
    "The batch size at which the speedup falls below 1, on the line between the sizes measured; "
    "95% bootstrap over examples."
)


PREDICTED = (
    "predicted: from the time of passes by their rows, measured before the run: a batch of n "
    "sequences that draft m tokens each is one pass of n x (m + 1) rows, greedy decoding one of n."
)


def has_batches(summaries: Sequence[Summary]) -> bool:
    """True if any of these decoded several sequences together."""
    return any(s["batch"] > 1 for s in summaries)


def comparison(
    summaries: Sequence[Summary], overall: Sequence[Summary], peers: Sequence[Beside] = ()
) -> list[Sheet]:
    """Tables for each task, for all together, and quality where it was scored."""
    tasks = list(dict.fromkeys(s["task"] for s in summaries))
    parts = [[s for s in summaries if s["task"] == task] for task in tasks]
    parts += [list(overall)] if len(tasks) > 1 and overall else []
    scored = any(s["quality"] for s in summaries)
    return [
        *(sheet for part in parts for sheet in sheets(part)),
        *([decode_tables.beside_peers(peers)] if peers else []),
        *([decode_tables.scores_sheet(summaries)] if scored else []),
    ]


def sheets(summaries: Sequence[Summary]) -> list[Sheet]:
    """The speed of one task, its gain over greedy in the same batch, and where that ends."""
    return [_speed(summaries), _gain(summaries), *_crossovers(summaries)]


def _named(summary: Summary) -> str:
    return label_alone(summary["label"], summary["batch"])


def _speed(summaries: Sequence[Summary]) -> Sheet:
    first = summaries[0]
    columns = {
        "tokens/s": "tokens_per_s",
        "each": "tokens_per_s_per_sequence",
        "first ms": "time_to_first_token_ms",
        "step ms": "ms_per_step",
        "accepted": "accepted_per_proposed",
        "full": "timed_share",
    }
    rows = tuple(
        (
            _named(s),
            s["batch"],
            *(s[name] for name in columns.values()),
            _over_alone(s),
            (s["peak_memory_bytes"] or 0) / 2**20,
        )
        for s in summaries
    )
    return Sheet(
        f"{first['task']}: {evidence.sized(summaries)}, {decode_tables.where(first)}",
        ("method", "batch", *columns, "x\nalone", "MiB"),
        rows,
        notes=(SPEED, ALONE, *_joining(summaries), *evidence.added_notes(summaries)),
        digits={
            **dict.fromkeys(("tokens/s", "each", "first ms"), 1),
            **dict.fromkeys(("step ms", "x\nalone"), 2),
            **dict.fromkeys(("accepted", "full", "MiB"), 0),
        },
        percent=frozenset({"accepted", "full"}),
        spare=("MiB", "full", "step ms", "accepted"),
    )


def _joining(summaries: Sequence[Summary]) -> list[str]:
    """Say how prompts took their places, where any joined a batch."""
    told = {s.get("prefill") for s in summaries} - {None}
    return [JOINED_APART if rows == APART else JOINED_BESIDE.format(rows) for rows in told]


def _over_alone(summary: Summary) -> Cell:
    # Beside a batch of one sequence greedy decoding has one prompt after the other itself.
    of_greedy = "baseline_tokens_per_s" if summary["batch"] == 1 else "alone_tokens_per_s"
    speed, alone = summary["tokens_per_s"], summary.get(of_greedy)
    return speed / alone if speed and alone else None


def _gain(summaries: Sequence[Summary]) -> Sheet:
    first, foretold = summaries[0], _is_predicted(summaries)
    rows = tuple(
        (
            _named(s),
            s["batch"],
            s["committed_per_step"],
            decode_tables.verdict_text(s),
            *evidence.speedup_cells(s),
            *([_predicted(s)] if foretold else []),
        )
        for s in summaries
    )
    notes = [n for n in evidence.notes_on(summaries) if n != evidence.PAIRED]
    predicted = {"predicted": PREDICTED} if foretold else {}
    return Sheet(
        f"{first['task']}: over greedy in a batch of the same size",
        ("method", "batch", "per step", "output", "speedup", "95%", *predicted),
        rows,
        notes=(decode_tables.PER_STEP, SAME_BATCH, *predicted.values(), *notes),
        digits={"per step": 2},
        spare=("per step",),
    )


def _crossovers(summaries: Sequence[Summary]) -> list[Sheet]:
    told = {_named(s): s for s in summaries if s.get("crossover") is not None}
    if not told:
        return []
    foretold = ["crossover_predicted"] if _is_predicted(summaries) else []
    columns = ["crossover", "crossover_interval", *foretold]
    rows = tuple((name, *(s[column] for column in columns)) for name, s in told.items())
    return [
        Sheet(
            f"{summaries[0]['task']}: the batch from which a method stops paying",
            ("method", "crossover", "95%", *(["predicted"] if foretold else [])),
            rows,
            notes=(CROSSOVER,),
        )
    ]


def _is_predicted(summaries: Sequence[Summary]) -> bool:
    return any(s.get("predicted_speedup") is not None for s in summaries)


def _predicted(summary: Summary) -> str:
    speedup = summary.get("predicted_speedup")
    return "-" if speedup is None else f"{speedup:.2f}x"
