"""From stored decoding samples to the figures people quote; no model, no torch.

Decode time is the time of the steps; the first token belongs to the prefill and is counted
with neither. Tokens are counted from ids, the same way for the method and its baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.pipelined import pipelined
from ppdbench.bench.roofline import profile
from ppdbench.bench.stats import Ratio, paired_ratio
from ppdbench.errors import DataError

Sample = Mapping[str, Any]
VERDICTS = ("identical", "tie", "mismatch")
ALL = "all tasks"


def summarize(
    header: Mapping[str, Any], samples: Sequence[Sample], *, scores: bool = True
) -> list[dict[str, Any]]:
    """One object per task and method, as `decode --format json` prints it, tasks together."""
    if not samples:
        raise DataError("the run holds no finished samples")
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample["task"], sample["method"]), []).append(sample)
    tasks = list(dict.fromkeys(task for task, _ in groups))
    ordered = sorted(groups, key=lambda group: tasks.index(group[0]))
    return [_summary(header, task, label, groups[task, label], scores) for task, label in ordered]


def overall(header: Mapping[str, Any], samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One object per method over all tasks; no quality, which no two tasks share."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample["method"], []).append(sample)
    return [_summary(header, ALL, label, group, False) for label, group in groups.items()]


def _summary(
    header: Mapping[str, Any], task: str, label: str, group: Sequence[Sample], scores: bool
) -> dict[str, Any]:
    model, method = header["model"], header["methods"][label]
    done = [sample for sample in group if sample["verdict"] != "failed"]
    verdicts = Counter(sample["verdict"] for sample in group)
    return {
        "model": model["name"],
        "dtype": model["dtype"],
        "synthetic": model["synthetic"],
        "strict": header["config"]["strict"],
        "target": header["config"]["target"]["kind"],
        "method": method["name"],
        "label": label,
        "options": method["options"],
        "exact": method["exact"],
        "task": task,
        "n_examples": len(group),
        "n_tokens": sum(len(sample["output_ids"]) for sample in done),
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "failed": verdicts["failed"],
        "agreement": None if method["exact"] or not done else _agreement(done),
        **_times(done),
        "profile": profile(done, header.get("bandwidth_bytes_per_s")),
        **pipelined(header.get("facts", {}).get(label), done),
        "peak_memory_bytes": max((sample["peak_memory_bytes"] for sample in done), default=None),
        "memory": _memory(header, label),
        "processes": _processes(done),
        "quality": _quality(header, task, done) if scores and done else None,
    }


def _memory(header: Mapping[str, Any], label: str) -> dict[str, int] | None:
    """Bytes of the model, of its cache, and of what the method holds besides."""
    held = header.get("memory")
    if held is None or label not in held["methods"]:
        return None
    return {
        "weight_bytes": held["weights"],
        "cache_bytes": held["cache"],
        "method_bytes": held["methods"][label],
    }


def _processes(group: Sequence[Sample]) -> int | None:
    """How many processes at most shared the machine; None where jobs came and went."""
    told = [sample.get("processes", 1) for sample in group]
    return None if None in told else max(told, default=1)


def no_difference(summary: Mapping[str, Any]) -> bool:
    """Whether noise could have made the speedup: by its interval, or greedy against itself."""
    value, low, high = (summary[f"speedup{end}"] for end in ("", "_low", "_high"))
    if None in (value, low, high):
        return False
    noise = summary["noise_low"], summary["noise_high"]
    return bool(low <= 1 <= high or (None not in noise and noise[0] <= value <= noise[1]))


def _times(group: Sequence[Sample]) -> dict[str, float | None]:
    """Speeds, acceptance and the paired ratio; None where nothing was timed or nothing is fair."""
    ours = [sum(sample["step_ms"]) for sample in group]
    theirs = [sum(sample["baseline_step_ms"]) for sample in group]
    again = [sample["baseline_again_ms"] for sample in group]
    steps = sum(len(sample["step_ms"]) for sample in group)
    tokens = sum(len(sample["output_ids"]) - 1 for sample in group)
    proposed = sum(sum(sample["proposed"]) for sample in group)
    accepted = sum(sum(sample["accepted"]) for sample in group)
    # No speed-up is ever quoted beside a mismatch.
    fair = not any(sample["verdict"] == "mismatch" for sample in group)
    ratio = _per_token_ratio(group, theirs, ours) if fair else None
    floor = _per_token_ratio(group, theirs, again, same_output=True)
    return {
        "prefill_ms": sum(s["prefill_ms"] for s in group) / len(group) if group else None,
        "ms_per_token": sum(ours) / tokens if tokens else None,
        "tokens_per_s": 1e3 * tokens / sum(ours) if sum(ours) else None,
        "draft_share": sum(sum(s["draft_ms"]) for s in group) / sum(ours) if sum(ours) else None,
        "committed_per_step": tokens / steps if steps else None,
        "accepted_per_proposed": accepted / proposed if proposed else None,
        "speedup": ratio.value if ratio else None,
        "speedup_low": ratio.low if ratio else None,
        "speedup_high": ratio.high if ratio else None,
        "noise_low": floor.low if floor else None,
        "noise_high": floor.high if floor else None,
        "baseline_tokens_per_s": _rate(group, theirs),
    }


def _baseline_tokens(sample: Sample) -> int:
    return len(sample["baseline_step_ms"])


def _rate(group: Sequence[Sample], theirs: Sequence[float]) -> float | None:
    tokens = sum(map(_baseline_tokens, group))
    return 1e3 * tokens / sum(theirs) if sum(theirs) else None


def _per_token_ratio(
    group: Sequence[Sample],
    theirs: Sequence[float],
    ours: Sequence[float],
    *,
    same_output: bool = False,
) -> Ratio | None:
    """Times per token, so that outputs of unequal length compare; each example by its length."""
    pairs = [
        (a, b if same_output else b * same_length(sample))
        for sample, a, b in zip(group, theirs, ours, strict=True)
        if a > 0 and b > 0 and same_length(sample)
    ]
    return paired_ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def same_length(sample: Sample) -> float:
    """What a method's time is multiplied by to be that of as many tokens as greedy gave."""
    n = len(sample["output_ids"]) - 1
    return _baseline_tokens(sample) / n if n else 0.0


def _agreement(group: Sequence[Sample]) -> float:
    """The share of greedy's tokens that an inexact method gives before it first differs."""
    kept: int = sum(s.get("first_difference", len(s["output_ids"])) for s in group)
    asked: int = sum(len(s.get("baseline_ids", s["output_ids"])) for s in group)
    return kept / asked


def _quality(
    header: Mapping[str, Any], task: str, group: Sequence[Sample]
) -> dict[str, float] | None:
    """The task's metrics; random weights are never given a quality score."""
    from ppdbench.scoring import NEEDS_EXECUTION, score_samples

    asked = header["data"][task]["metrics"]
    if header["model"]["synthetic"]:
        return None
    metrics = [metric for metric in asked if metric not in NEEDS_EXECUTION]
    found = _passed(group) if NEEDS_EXECUTION & set(asked) else {}
    if metrics:
        found |= score_samples(metrics, group)
    return {metric: found[metric] for metric in asked if metric in found} or None


def _passed(group: Sequence[Sample]) -> dict[str, float]:
    """What running the programs showed when they were made; nothing where that was not allowed."""
    if not all("passed" in sample for sample in group):
        return {}
    return {"humaneval_pass1": sum(sample["passed"] for sample in group) / len(group)}
