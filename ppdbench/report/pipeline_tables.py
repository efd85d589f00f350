"""Predictive Pipelined Decoding for people: what was gained of what theory promised, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.pipelined import geometric
from ppdbench.files.publications import PPD
from ppdbench.report.evidence import speedup_cells
from ppdbench.report.sheet import Sheet

Summary = Mapping[str, Any]
LONGEST_RUN = 8  # longer ones share a row

PREDICTIONS = (
    "p: the match rate, how often the candidates held the token that came. Predicted from it: "
    "theorem, the speedup of the paper's Theorem 4.1 for this p; matches, the same cost for the "
    "matches that were found; times, these with the times of the parts on this machine."
)
EFFICIENCY = (
    "Efficiency: the share of the theorem's gain over one unit that was measured. All units: "
    "against greedy decoding with the threads of all units together."
)
INLINE = "One process ran everything in turn: its latency is predicted, not measured."


def sheets(summaries: Sequence[Summary]) -> list[Sheet]:
    """All tables on the `ppd` rows among these; none if there are none."""
    ours = [s for s in summaries if "p" in s]
    return [_gain(ours), _resources(ours), _runs(ours)] if ours else []


def _gain(summaries: Sequence[Summary]) -> Sheet:
    rows = tuple(
        (
            s["task"],
            s["label"],
            s["p"],
            *(_times(s[f"predicted_speedup{end}"]) for end in ("", "_matches", "_times")),
            *speedup_cells(s, "speedup_one_unit"),
            s["gain_efficiency"],
            speedup_cells(s, "speedup_all_units")[0],
        )
        for s in summaries
    )
    alone = any(s["form"] == "inline" for s in summaries)
    return Sheet(
        "Theory and measurement",
        (
            "task",
            "method",
            "p",
            "theorem",
            "matches",
            "times",
            "one unit",
            "95%",
            "efficiency",
            "all units",
        ),
        rows,
        notes=(PREDICTIONS, EFFICIENCY, *((INLINE,) if alone else ())),
        digits={"p": 3, "efficiency": 2},
        spare=("times", "matches", "95%", "efficiency"),
    )


def _resources(summaries: Sequence[Summary]) -> Sheet:
    rows = tuple(
        (
            s["task"],
            s["label"],
            s["units"],
            s["units_busy"],
            s["units_busy_predicted"],
            s["communication_ms_per_token"],
            s["communication_share"],
            " + ".join(f"{size / 2**20:.1f}" for size in s["weight_bytes_per_unit"]),
        )
        for s in summaries
    )
    return Sheet(
        "Units",
        (
            "task",
            "method",
            "units",
            "busy",
            "equation 5",
            "communication ms/token",
            "of units' time",
            "weights MiB",
        ),
        rows,
        notes=(
            "Busy: processes at work at a time in the paper's form, for the matches found; "
            f"equation 5 is what p alone predicts. The paper: {PPD}.",
            "Communication: what all units together waited for messages, those of the prompt "
            "included; of units' time: of as many times the whole output's.",
        ),
        digits={"busy": 2, "equation 5": 2, "communication ms/token": 3, "of units' time": 1},
        percent=frozenset({"of units' time"}),
        spare=("weights MiB", "of units' time"),
    )


def _runs(summaries: Sequence[Summary]) -> Sheet:
    """Runs of tokens up to a miss, over all tasks, beside what independent matches would give."""
    rows: list[tuple[str, str, int, float, float]] = []
    for label in dict.fromkeys(s["label"] for s in summaries):
        group = [s for s in summaries if s["label"] == label]
        counts = sum((Counter(s["run_lengths"]) for s in group), Counter[int]())
        total = sum(counts.values())
        if not total:
            continue
        positions = sum(s["p_positions"] for s in group)
        p = sum(s["p"] * s["p_positions"] for s in group) / positions
        rows += [
            (label, str(length), counts[length], counts[length] / total, geometric(p, length))
            for length in range(1, LONGEST_RUN)
        ]
        rest = sum(n for length, n in counts.items() if length >= LONGEST_RUN)
        expected = p ** (LONGEST_RUN - 1)
        rows.append((label, f"{LONGEST_RUN} or more", rest, rest / total, expected))
    return Sheet(
        "Run lengths",
        ("method", "tokens", "runs", "share", "if independent"),
        tuple(rows),
        notes=(
            "A run ends with a miss; those that the end of an output cut off are left out. If "
            "independent: matches that each come with p, the share of all positions that matched.",
        ),
        digits={"share": 1, "if independent": 1},
        percent=frozenset({"share", "if independent"}),
    )


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
