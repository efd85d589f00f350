"""How sure a speedup is, in the words that every table and page uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.claims import TOO_FEW, WHY_TOO_FEW, Speedup, no_difference
from ppdbench.bench.stats import FEW, FEW_EXAMPLES

Summary = Mapping[str, Any]
PLAIN = (None, "mismatch", "not measured")  # a mismatch and failures stand under output
PAIRED = "Speedup: greedy's decode time over the method's, paired by example, 95% bootstrap."


def sized(summaries: Sequence[Summary]) -> str:
    """How many examples there were, and how many of them took a step that could be timed."""
    examples, timed = summaries[0]["n_examples"], min(s["n_timed"] for s in summaries)
    unit = "example" if examples == 1 else "examples"
    return f"{examples} {unit}" + (f", {timed} timed" if timed < examples else "")


def speedup_cells(summary: Summary, name: str = "speedup") -> tuple[str, str]:
    """The paired ratio and its interval; why there is none, or what noise could have made."""
    if summary["method"] == "greedy" and name == "speedup" and summary["noise_low"] is not None:
        return "noise floor", _interval(summary["noise_low"], summary["noise_high"])
    value, low, high, withheld = (
        summary[f"{name}{end}"] for end in ("", "_low", "_high", "_withheld")
    )
    if value is None:
        return _reason(withheld), "-"
    no_claim = name == "speedup" and no_difference(summary)
    return "no difference" if no_claim else f"{value:.2f}x", _interval(low, high)


def claim_cells(speedup: Speedup) -> tuple[str, str]:
    """The same of what has no summary."""
    ratio = speedup.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return _reason(speedup.withheld), "-"
    return f"{ratio.value:.2f}x", _interval(ratio.low, ratio.high)


def degenerate_words(summary: Summary) -> list[str]:
    """How many outputs say nothing, by kind."""
    kinds = {"empty": "empty", "loops": "looping"}
    return [f"{summary[kind]} {word}" for kind, word in kinds.items() if summary[kind]]


def mostly_degenerate(summaries: Sequence[Summary]) -> str | None:
    """What speedups are worth where half or more of the outputs are empty or loop."""
    found = [s for s in summaries if 2 * (s["empty"] + s["loops"]) >= s["n_examples"]]
    if not found:
        return None
    worst = max(found, key=lambda s: (s["empty"] + s["loops"]) / s["n_examples"])
    kinds = " and ".join(degenerate_words(worst))
    return (
        f"Degenerate: of {worst['n_examples']} outputs of {worst['label']} {kinds}. A speedup over "
        "such outputs says little of others; other prompts or another task would."
    )


def _reason(withheld: str | None) -> str:
    """Why there is no speedup, where nothing else in the row says so already."""
    return "-" if withheld in PLAIN else str(withheld)


def _interval(low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"


def notes_on(summaries: Sequence[Summary]) -> list[str]:
    """How speedups came about, and what they can be told from."""
    notes = [PAIRED]
    floors = [s for s in summaries if s["noise_low"] is not None]
    if floors:
        low, high = min(s["noise_low"] for s in floors), max(s["noise_high"] for s in floors)
        notes.append(f"Greedy against itself: {_interval(low, high)}, the noise of this machine.")
    if (mostly := mostly_degenerate(summaries)) is not None:
        notes.append(mostly)
    if any(s["speedup_withheld"] == TOO_FEW for s in summaries):
        notes.append(WHY_TOO_FEW)
    elif min(s["n_timed"] for s in summaries) < FEW_EXAMPLES:
        notes.append(FEW)
    return notes
