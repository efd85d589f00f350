"""What one decoding run says, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.stats import FEW, FEW_EXAMPLES
from ppdbench.report.export import Cell, Sheet

Summary = Mapping[str, Any]


def sheets(summaries: Sequence[Summary]) -> list[Sheet]:
    """Speed, identity and, where it was scored, quality per task."""
    return [
        _speed(summaries),
        _identity(summaries),
        *([_quality(summaries)] if _scored(summaries) else []),
    ]


def speedup_text(summary: Summary) -> str:
    """The paired ratio with its interval; nothing beside a mismatch, no claim inside the noise."""
    if summary["speedup"] is None:
        return "-"
    if summary["speedup_low"] is None:
        return f"{summary['speedup']:.2f}x"
    interval = f"[{summary['speedup_low']:.2f}, {summary['speedup_high']:.2f}]"
    if summary["method"] == "greedy":
        return f"noise floor {interval}"
    if summary["speedup_low"] <= 1 <= summary["speedup_high"]:
        return f"no difference {interval}"
    return f"{summary['speedup']:.2f}x {interval}"


def _speed(summaries: Sequence[Summary]) -> Sheet:
    first = summaries[0]
    warning = ", random weights" if first["synthetic"] else ""
    columns = {
        "task": "task",
        "examples": "n_examples",
        "tokens": "n_tokens",
        "prefill ms": "prefill_ms",
        "ms/token": "ms_per_token",
        "tokens/s": "tokens_per_s",
        "per step": "committed_per_step",
    }
    rows = tuple(tuple(s[name] for name in columns.values()) for s in summaries)
    return Sheet(
        f"{first['method']}{_options(first)} on {first['model']} ({first['dtype']}{warning})",
        tuple(columns),
        rows,
        notes=(
            "Steps alone; the first token belongs to the prefill. Peak memory of the process: "
            f"{max(s['peak_memory_bytes'] for s in summaries) / 2**20:.0f} MiB.",
        ),
        digits={"prefill ms": 2, "ms/token": 3, "tokens/s": 1, "per step": 2},
    )


def _options(summary: Summary) -> str:
    """The method's options, as they would be typed."""
    pairs = ", ".join(f"{name}={value}" for name, value in summary["options"].items())
    return f" ({pairs})" if pairs else ""


def _identity(summaries: Sequence[Summary]) -> Sheet:
    rows: list[tuple[Cell, ...]] = [
        (s["task"], s["identical"], s["tie"], s["mismatch"], speedup_text(s)) for s in summaries
    ]
    notes = ["Speedup: greedy's decode time over the method's, paired by example, 95% bootstrap."]
    if summaries[0]["method"] == "greedy":
        notes.append("Greedy against itself: the noise floor of this machine.")
    if min(s["n_examples"] for s in summaries) < FEW_EXAMPLES:
        notes.append(FEW)
    return Sheet(
        "Against greedy",
        ("task", "identical", "tie", "mismatch", "speedup"),
        tuple(rows),
        notes=tuple(notes),
    )


def _scored(summaries: Sequence[Summary]) -> bool:
    return any(s["quality"] for s in summaries)


def _quality(summaries: Sequence[Summary]) -> Sheet:
    rows = tuple(
        (s["task"], metric, value)
        for s in summaries
        for metric, value in (s["quality"] or {}).items()
    )
    return Sheet("Quality", ("task", "metric", "value"), rows)


def long(summaries: Sequence[Summary]) -> Sheet:
    """Every figure, one task per row, for other programs."""
    names = tuple(name for name in summaries[0] if name not in ("options", "quality"))
    return Sheet(
        "decoding",
        names,
        tuple(
            tuple(str(v) if isinstance(v := s[n], bool) else v for n in names) for s in summaries
        ),
    )
