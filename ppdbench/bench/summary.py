"""The figures people quote, computed from stored decoding samples; no model, no torch.

Decode time is the time of the steps; the first token belongs to the prefill and is counted
with neither. Tokens are counted from ids, the same way for the method and its baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.claims import claim, no_difference, over_greedy, times_by_question
from ppdbench.bench.conditions import Conditions, turns_of
from ppdbench.bench.counterparts import peers
from ppdbench.bench.crossover import Crossover, crossovers
from ppdbench.bench.labels import APART
from ppdbench.bench.pipelined import pipelined
from ppdbench.bench.roofline import profile
from ppdbench.bench.sums import SampleSums
from ppdbench.errors import DataError
from ppdbench.methods.exits import PROBES
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import DecodingHeader, DecodingMethod, Header, decoding
from ppdbench.scoring import NEEDS_EXECUTION, score_samples
from ppdbench.stats import mean

VERDICTS = ("identical", "tie", "mismatch")
ALL = "all tasks"


def summarize(
    header: Header, sums: Sequence[SampleSums], *, scores: bool = True
) -> list[dict[str, Any]]:
    """One object per task and method, as `decode --format json` prints it, tasks together."""
    header = decoding(header)
    if not sums:
        raise DataError("the run holds no finished samples")
    groups: dict[tuple[str, str], list[SampleSums]] = {}
    for one in sums:
        groups.setdefault((one.task, one.method), []).append(one)
    tasks = list(dict.fromkeys(task for task, _ in groups))
    ordered = sorted(groups, key=lambda group: tasks.index(group[0]))
    under = {task: _conditions(header, [s for s in sums if s.task == task]) for task in tasks}
    pays = {
        task: _crossovers(header, [s for s in sums if s.task == task], found)
        for task, found in under.items()
    }
    return [
        {
            **_summary(header, task, label, groups[task, label], under[task][label], scores),
            **_figures(header, pays[task], label),
        }
        for task, label in ordered
    ]


def overall(header: Header, sums: Sequence[SampleSums]) -> list[dict[str, Any]]:
    """One object per method over all tasks; no quality, which no two tasks shard."""
    header = decoding(header)
    groups: dict[str, list[SampleSums]] = {}
    for one in sums:
        groups.setdefault(one.method, []).append(one)
    under = _conditions(header, sums)
    pays = _crossovers(header, sums, under)
    return [
        {
            **_summary(header, ALL, label, group, under[label], False),
            **_figures(header, pays, label),
        }
        for label, group in groups.items()
    ]


def _conditions(header: DecodingHeader, sums: Sequence[SampleSums]) -> dict[str, Conditions]:
    """The conditions of each method: those of all that took turns with it."""
    turns = turns_of(header)
    found = {
        turn: Conditions.of(header.methods, [s for s in sums if turns[s.method] == turn])
        for turn in set(turns.values())
    }
    return {label: found[turn] for label, turn in turns.items()}


def _crossovers(
    header: DecodingHeader, sums: Sequence[SampleSums], under: Mapping[str, Conditions]
) -> dict[str, Crossover]:
    noise = {label: conditions.noise for label, conditions in under.items()}
    return crossovers(header.methods, sums, header.pass_model, noise)


def _figures(header: DecodingHeader, pays: Mapping[str, Crossover], label: str) -> dict[str, Any]:
    """The batch from which a method no longer pays, where several sizes were measured."""
    return pays[label].figures(header.methods[label].batch) if label in pays else {}


def _summary(
    header: DecodingHeader,
    task: str,
    label: str,
    group: Sequence[SampleSums],
    under: Conditions,
    scores: bool,
) -> dict[str, Any]:
    model, method = header.model, header.methods[label]
    drawn = header.config.target.kind
    verdicts = Counter(one.verdict for one in group)
    done = [one for one in group if not one.failed]
    times = _times(done, method.batch, verdicts["failed"])
    floor = {
        "noise_low": under.noise and under.noise.low,
        "noise_high": under.noise and under.noise.high,
    }
    return {
        "model": model.name,
        "dtype": model.dtype,
        "gguf": model.gguf,
        "adapter": model.adapter,
        "synthetic": model.synthetic,
        "prompts": in_words(prompting(header)),
        "strict": header.config.strict,
        "target": drawn,
        "method": method.name,
        "label": label,
        "batch": method.batch,
        "prefill": _joining(header, method),
        "options": method.options,
        "used": (header.used or {}).get(label, {}),
        "chosen": (header.chosen or {}).get(label, {}),
        "added": (header.added or {}).get(label),
        "probed": {n: found for n, found in header.facts.get(label, {}).items() if n in PROBES},
        "exact": method.exact,
        "task": task,
        "n_examples": len(group),
        "n_questions": len({one.question for one in group}),
        "n_timed": len(times_by_question([over_greedy(one) for one in done])),
        "n_tokens": sum(one.tokens for one in done),
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "failed": verdicts["failed"],
        "empty": sum(one.degenerate == "empty" for one in done),
        "loops": sum(one.degenerate == "loop" for one in done),
        "agreement": _agreement(done) if done and not method.exact and drawn == "greedy" else None,
        **times,
        **floor,
        "no_difference": no_difference({**times, **floor}),
        "under_load": under.under_load,
        "profile": profile(done, header.bandwidth_bytes_per_s),
        **_alone(done),
        **pipelined(header.facts.get(label), done, verdicts["failed"]),
        "peak_memory_bytes": max((one.sample.peak_memory_bytes for one in done), default=None),
        "memory": _memory(header, label),
        "experts": _experts(model.experts, done),
        "processes": _processes(done),
        # Of some examples alone it is no score of the task.
        "quality": _quality(header, task, done) if scores and len(done) == len(group) else None,
        **_unscored(done),
    }


def _joining(header: DecodingHeader, method: DecodingMethod) -> str | int | None:
    """The value of `--prefill`, where prompts join a batch of ours."""
    if method.batch == 1 or peers({method.name}):
        return None
    return header.config.prefill or APART


def _experts(held: int | None, group: Sequence[SampleSums]) -> dict[str, Any] | None:
    """Count the experts that passes touch, by their rows: the mean in a layer that holds `held`."""
    calls, touched = Counter[int](), Counter[int]()
    for one in group:
        for rows, (n, experts) in (one.sample.experts or {}).items():
            calls[int(rows)] += n
            touched[int(rows)] += experts
    if held is None or not calls:
        return None
    return {"of": held, "by_rows": {str(n): touched[n] / calls[n] for n in sorted(calls)}}


def _alone(group: Sequence[SampleSums]) -> dict[str, float | None]:
    """The speed of greedy decoding of one prompt after the other, where a batch is beside it."""
    times = [one.sample.alone for one in group if one.sample.alone is not None]
    ms = sum(each.step_ms for each in times)
    if not times:
        return {}
    return {"alone_tokens_per_s": 1e3 * sum(each.steps for each in times) / ms if ms else None}


def _memory(header: DecodingHeader, label: str) -> dict[str, int] | None:
    """Bytes of the model, of its caches, and of what the method holds besides."""
    held = header.memory
    if held is None or label not in held.methods:
        return None
    size = header.methods[label].batch
    return {
        "weight_bytes": held.weights,
        "cache_bytes": (held.batches or {}).get(str(size), held.cache),
        "method_bytes": held.methods[label],
    }


def _processes(group: Sequence[SampleSums]) -> int | None:
    """Return the most processes that shared the machine; None where jobs came and went."""
    told = [one.about.shared_by for one in group]
    known = [processes for processes in told if processes is not None]
    return max(known, default=1) if len(known) == len(told) else None


def _times(group: Sequence[SampleSums], batch: int, failed: int) -> dict[str, Any]:
    """Speeds, acceptance and the paired ratio; None where nothing was timed or may be claimed.

    A token takes as long as one sequence waits for it; `tokens_per_s` is of all sequences of a
    batch together.
    """
    ours, theirs = sum(s.step_ms for s in group), sum(s.baseline_step_ms for s in group)
    steps, committed = sum(s.steps for s in group), sum(s.tokens - 1 for s in group)
    timed_steps, tokens = sum(s.timed_steps for s in group), sum(s.timed_tokens for s in group)
    every_ms = sum(s.every_ms for s in group)
    proposed, accepted = sum(s.proposed for s in group), sum(s.accepted for s in group)
    baseline_steps = sum(s.baseline_steps for s in group)
    timed = timed_steps and ours and theirs and baseline_steps
    return {
        "prefill_ms": sum(s.sample.prefill_ms for s in group) / len(group) if group else None,
        "ms_per_token": ours / tokens if tokens else None,
        "tokens_per_s": 1e3 * batch * tokens / ours if ours else None,
        "tokens_per_s_per_sequence": 1e3 * tokens / ours if ours else None,
        "time_to_first_token_ms": _to_first_token(group),
        "ms_per_step": ours / timed_steps if timed_steps else None,
        "timed_share": ours / every_ms if every_ms else None,
        "draft_share": sum(s.draft_ms for s in group) / every_ms if every_ms else None,
        "committed_per_step": committed / steps if steps else None,
        "accepted_per_proposed": accepted / proposed if proposed else None,
        "proposed_per_step": proposed / steps if steps else None,
        # What a step must commit to be worth its time: how many of greedy's it takes as long as.
        "committed_to_pay": ours / timed_steps / (theirs / baseline_steps) if timed else None,
        **claim([over_greedy(one) for one in group], failed).figures(),
        "baseline_tokens_per_s": 1e3 * batch * baseline_steps / theirs if theirs else None,
    }


def _to_first_token(group: Sequence[SampleSums]) -> float | None:
    """The mean time to the first token; of one sequence at a time its prefill."""
    told = [s.sample.time_to_first_token_ms for s in group]
    times = [s.sample.prefill_ms if ms is None else ms for s, ms in zip(group, told, strict=True)]
    return mean(times) if times else None


def _agreement(group: Sequence[SampleSums]) -> float:
    """The share of greedy's tokens that an inexact method gives before it first differs."""
    differ = [(s.sample.first_difference, s.tokens) for s in group]
    kept = sum(tokens if first is None else first for first, tokens in differ)
    return kept / sum(s.baseline_tokens for s in group)


def _quality(
    header: DecodingHeader, task: str, group: Sequence[SampleSums]
) -> dict[str, float] | None:
    """The task's metrics; random weights are never given a quality score."""

    asked = header.data[task].metrics
    if header.model.synthetic:
        return None
    metrics = [metric for metric in asked if metric not in NEEDS_EXECUTION]
    found = _passed(group) if NEEDS_EXECUTION & set(asked) else {}
    if metrics:
        found |= score_samples(metrics, [one.sample for one in group])
    return {metric: found[metric] for metric in asked if metric in found} or None


def _unscored(group: Sequence[SampleSums]) -> dict[str, int]:
    """Count the outputs whose reference cannot be scored, where there are some."""
    lacking = sum(None in (one.sample.scores or {}).values() for one in group)
    return {"unscored": lacking} if lacking else {}


def _passed(group: Sequence[SampleSums]) -> dict[str, float]:
    """Sum up how the programs ran when they were made; nothing where running was not allowed."""
    passed = [one.sample.passed for one in group]
    return {} if None in passed else {"humaneval_pass1": passed.count(True) / len(group)}
