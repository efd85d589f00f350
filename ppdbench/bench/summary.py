"""From stored decoding samples to the figures people quote; no model, no torch.

Decode time is the time of the steps; the first token belongs to the prefill and is counted
with neither. Tokens are counted from ids, the same way for the method and its baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.stats import paired_ratio
from ppdbench.errors import DataError

Sample = Mapping[str, Any]
VERDICTS = ("identical", "tie", "mismatch")


def summarize(
    header: Mapping[str, Any], samples: Sequence[Sample], *, scores: bool = True
) -> list[dict[str, Any]]:
    """One object per task, as `decode --format json` prints it."""
    if not samples:
        raise DataError("the run holds no finished samples")
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample["task"], []).append(sample)
    return [_summary(header, task, group, scores) for task, group in groups.items()]


def _summary(
    header: Mapping[str, Any], task: str, group: Sequence[Sample], scores: bool
) -> dict[str, Any]:
    verdicts = Counter(sample["verdict"] for sample in group)
    ours = [sum(sample["step_ms"]) for sample in group]
    theirs = [sum(sample["baseline_step_ms"]) for sample in group]
    steps = sum(len(sample["step_ms"]) for sample in group)
    tokens = sum(len(sample["output_ids"]) - 1 for sample in group)
    proposed = sum(sum(sample["proposed"]) for sample in group)
    timed = [(a, b) for a, b in zip(theirs, ours, strict=True) if b > 0]
    # No speed-up is ever quoted beside a mismatch.
    fair = bool(timed) and not verdicts["mismatch"]
    ratio = paired_ratio([a for a, _ in timed], [b for _, b in timed]) if fair else None
    model = header["model"]
    return {
        "model": model["name"],
        "dtype": model["dtype"],
        "synthetic": model["synthetic"],
        "method": header["method"]["name"],
        "options": header["method"]["options"],
        "exact": header["method"]["exact"],
        "task": task,
        "n_examples": len(group),
        "n_tokens": sum(len(sample["output_ids"]) for sample in group),
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "prefill_ms": sum(sample["prefill_ms"] for sample in group) / len(group),
        "ms_per_token": sum(ours) / tokens if tokens else None,
        "tokens_per_s": 1e3 * tokens / sum(ours) if sum(ours) else None,
        "committed_per_step": tokens / steps if steps else None,
        "accepted_per_proposed": (
            sum(sum(sample["accepted"]) for sample in group) / proposed if proposed else None
        ),
        "speedup": ratio.value if ratio else None,
        "speedup_low": ratio.low if ratio else None,
        "speedup_high": ratio.high if ratio else None,
        "baseline_tokens_per_s": 1e3 * tokens / sum(theirs) if sum(theirs) else None,
        "peak_memory_bytes": max(sample["peak_memory_bytes"] for sample in group),
        "quality": _quality(header, task, group) if scores else None,
    }


def _quality(
    header: Mapping[str, Any], task: str, group: Sequence[Sample]
) -> dict[str, float] | None:
    """The task's metrics; random weights are never given a quality score."""
    from ppdbench.scoring import NEEDS_EXECUTION, score

    metrics = [m for m in header["data"][task]["metrics"] if m not in NEEDS_EXECUTION]
    if header["model"]["synthetic"] or not metrics:
        return None
    return score(
        metrics,
        [sample["text"] for sample in group],
        [sample["references"] for sample in group],
    )
