"""Table 1 of "Hardware-Aware Parallel Prompt Decoding": prompt tokens beside greedy and Medusa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.files.papers import Paper
from ppdbench.report.sheet import Cell
from ppdbench.runs.store import StoredRun
from ppdbench.tables import decoded
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.compared import ComparedRow, Quantity, blanks, compared
from ppdbench.tables.recipe import RecipeStep

TASK = "mt_bench"
METHODS = {"vanilla": "greedy", "medusa": "medusa", "prompt_ppd": "prompt-tokens"}

COMPARISON = RecipeStep(
    "prompt-ppd-comparison",
    f"bench --task {TASK} --method greedy --method medusa --method prompt-tokens",
)
# 0.7 is what FastChat's answers to MT-Bench are drawn with unless it is told otherwise.
SAMPLED = RecipeStep(
    "prompt-ppd-comparison-sampled",
    f"{COMPARISON.command} --target top-p --top-p 1 --temperature 0.7",
)
QUANTITIES = (
    Quantity("throughput_tok_s", "tokens/s", 1),
    Quantity("speedup", "speedup", 2),
    Quantity("tau", "tokens per pass", 2),
    Quantity("l_fp_ms", "ms per pass", 2),
    Quantity("quality", "score", 2),
    Quantity("p_tr_percent", "trained %", 6),
    Quantity("s_tr", "nodes"),
    Quantity("s_input", "rows"),
)
NOTES = (
    "score: MT-Bench, by a language model as judge, which is not run here; greedy outputs are the "
    "same with every method, so that the score would be too.",
    "trained %: numbers trained for the method, of the model's. nodes: of the tree in each state, "
    "the newest token included; rows: of a pass, prompt tokens included.",
    "Speedups of the paper are ratios of its tokens/s.",
)
# Of the paper's rows that are sampled, with ours beside them or without.
DRAWN = "The paper's 7B and 13B rows are sampled with MT-Bench's default temperature; ours "


@table("prompt_ppd/1", recipe=(COMPARISON, SAMPLED), tasks=(TASK,), drawn=True)
def comparison_with_medusa(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Throughput, accept length, latency of a pass, trained share and tree sizes."""
    summaries = decoded.summaries(runs, (TASK,))
    shown = [s for s in summaries if s["method"] in METHODS.values()]
    measured = decoded.one_each(shown, lambda s: (s["method"], _is_drawn(s)))
    ours = {place: _values(summary) for place, summary in measured.items()}
    any_drawn = any(map(_is_drawn, summaries))
    vanilla = {
        row["model"]: row["throughput_tok_s"] for row in paper["rows"] if row["method"] == "vanilla"
    }
    rows = [
        ComparedRow(
            (row["model"], METHODS[row["method"]]),
            _printed(row, vanilla[row["model"]]),
            ours.get((METHODS[row["method"]], any_drawn and row["setting"] == "non_greedy"), {}),
        )
        for row in paper["rows"]
    ]
    missing = blanks(rows, "the method was not run on mt_bench", runs)
    title = "Table 1: comparison with vanilla and Medusa"
    return compared(
        title,
        ("model", "method"),
        QUANTITIES,
        rows,
        (*NOTES, DRAWN + _how(summaries), *missing, *decoded.evidence(summaries)),
    )


def _is_drawn(summary: Mapping[str, Any]) -> bool:
    return bool(summary["target"] != "greedy")


def _how(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Say how the outputs beside the paper's sampled ones were made."""
    headers = [summary["run"].header for summary in summaries if _is_drawn(summary)]
    told = sorted({f"{header.config.target.temperature:g}" for header in headers})
    return f"are drawn at temperature {' and '.join(told)}." if told else "are greedy."


def _printed(row: Mapping[str, Any], vanilla: float) -> dict[str, Cell]:
    """A printed row in the units of the table."""
    share = row["p_tr"]
    return {
        **row,
        "speedup": row["throughput_tok_s"] / vanilla,
        "l_fp_ms": 1e3 * row["l_fp_s"],
        "p_tr_percent": None if share is None else 100 * share,
        "s_tr": _sizes(row["s_tr"]),
        "s_input": _sizes(row["s_input"]),
    }


def _values(summary: Mapping[str, Any]) -> dict[str, Cell]:
    """Return what was measured, and what the run knows of the method."""
    facts = decoded.facts(summary)
    added = facts.get("added_parameters")
    return {
        "throughput_tok_s": summary["tokens_per_s"],
        "speedup": decoded.speedup(summary),
        "tau": summary["committed_per_step"],
        "l_fp_ms": decoded.ms_per_pass(summary),
        "p_tr_percent": None if added is None else 100 * added / facts["model_parameters"],
        "s_tr": _sizes(facts.get("nodes")),
        "s_input": _sizes(facts.get("rows", [1] if summary["method"] == "greedy" else None)),
    }


def _sizes(sizes: Sequence[int] | None) -> str | None:
    return None if sizes is None else ",".join(map(str, sizes))
