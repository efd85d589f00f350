"""The sample of an example and a method, made of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ppdbench.bench.full_batches import Place
from ppdbench.bench.interleaved import BASELINE, ExampleResult
from ppdbench.decoding.written import visible_text
from ppdbench.engine.loading import Loaded
from ppdbench.runs.records import (
    DecodedSample,
    Decoding,
    FailedSample,
    FullBatch,
    GreedyTimes,
    Judged,
    Load,
    Profile,
)
from ppdbench.runs.workload import Item, asked, limits_of
from ppdbench.scoring import NEEDS_EXECUTION, score_parts


def sample_of(
    item: Item,
    label: str,
    outcomes: Mapping[str, ExampleResult],
    loaded: Loaded,
    load: Load | None = None,
) -> Decoding:
    """Everything measured on one example; means are made when it is read."""
    outcome, baseline, again = (outcomes[n] for n in (label, *BASELINE))
    known = {
        **asked(item),
        "method": label,
        "references": list(item.example.references),
        "turn": item.turn if item.task.turns else None,
        "turns": len(item.example.turns) if item.task.turns else None,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "load": load,
    }
    if outcome.decoded is None:
        error = outcome.error or ""
        return FailedSample(**known, verdict="failed", output_ids=[], error=error)
    assert outcome.verdict != "failed"
    ours, theirs, floor = outcome.decoded, baseline.decoded, again.decoded
    assert theirs is not None
    assert floor is not None
    text = visible_text(loaded.tokenizer, item.ids, ours.output_ids, limits_of(item, loaded))
    return DecodedSample(
        **known,
        verdict=outcome.verdict,
        finish=ours.finish,
        output_ids=list(ours.output_ids),
        text=text,
        accepted=list(ours.accepted),
        proposed=list(ours.proposed),
        rows=list(ours.rows),
        prefill_ms=_rounded(ours.prefill_ms),
        step_ms=[_rounded(ms) for ms in ours.step_ms],
        draft_ms=[_rounded(ms) for ms in ours.draft_ms],
        baseline_prefill_ms=_rounded(theirs.prefill_ms),
        baseline_step_ms=[_rounded(ms) for ms in theirs.step_ms],
        baseline_again_ms=_rounded(sum(floor.step_ms)),
        baseline_again_steps=len(floor.step_ms),
        wall_ms=_rounded(ours.wall_ms),
        prompt_ms=_rounded(ours.prompt_ms),
        baseline_wall_ms=_rounded(theirs.wall_ms),
        baseline_prompt_ms=_rounded(theirs.prompt_ms),
        scores=None if loaded.spec.is_synthetic else _scores(item, text),
        profile=None
        if ours.profile is None
        else Profile(**{name: _rounded(value) for name, value in ours.profile.items()}),
        exits=list(ours.exits) or None,
        experts={str(rows): pair for rows, pair in ours.experts.items()} or None,
        **_pipelined(outcome),
        **_difference(outcome),
        **_together(outcome, baseline, again),
    )


def _together(
    outcome: ExampleResult, baseline: ExampleResult, again: ExampleResult
) -> dict[str, Any]:
    """Fields of an output from a batch."""
    if outcome.place is None or outcome.decoded is None or outcome.alone is None:
        return {}
    alone = outcome.alone
    return {
        "batch": outcome.place.size,
        "time_to_first_token_ms": _rounded(outcome.decoded.prefill_ms),
        "full": _full(outcome.place),
        "baseline_full": _full(baseline.place),
        "baseline_again_full": _full(again.place),
        "alone": GreedyTimes(
            prefill_ms=_rounded(alone.prefill_ms),
            step_ms=_rounded(sum(alone.step_ms)),
            steps=len(alone.steps),
        ),
    }


def _full(place: Place | None) -> FullBatch | None:
    if place is None:
        return None
    return FullBatch(ms=_rounded(place.full_ms), steps=place.full_steps, tokens=place.full_tokens)


def _scores(item: Item, text: str) -> dict[str, Any] | None:
    """Make the parts that the output adds to the metrics which need no execution."""
    scored = [metric for metric in item.task.metrics if metric not in NEEDS_EXECUTION]
    return (
        score_parts(scored, text, item.example.references, which=_which(item)) if scored else None
    )


def _pipelined(outcome: ExampleResult) -> dict[str, Any]:
    """Fields of an output that several units shared the work on."""
    assert outcome.decoded is not None
    if (found := outcome.decoded.pipelined) is None:
        return {}
    return {
        "matches": list(map(int, found.matches)),
        "communication_ms": _rounded(found.communication_ms),
        "greedy_by_threads": {
            str(n): GreedyTimes(
                prefill_ms=_rounded(greedy.prefill_ms),
                step_ms=_rounded(sum(greedy.step_ms)),
                steps=len(greedy.step_ms),
            )
            for n, greedy in outcome.by_threads.items()
        },
        "events": [
            (unit, what, token, _rounded(start), _rounded(end))
            for unit, what, token, start, end in found.events
        ],
    }


def _difference(outcome: ExampleResult) -> dict[str, Any]:
    """Fields that say where an output leaves greedy's, and what is made of that."""
    found = outcome.judgement
    if found is None or found.position is None:
        return {}
    assert outcome.reference is not None
    return {
        "first_difference": found.position,
        "baseline_ids": list(outcome.reference.output_ids),
        "margin": found.margin,
        "discrepancy": found.discrepancy,
        "judged": msgspec.convert(found.judged, Judged) if found.judged else None,
    }


def _which(item: Item) -> str:
    return f"{item.task.name} example {item.example.id}"


def _rounded(ms: float) -> float:
    return round(ms, 4)
