"""Passes and steps timed before a run, from which speedups in batches are predicted.

Passes of one sequence by their rows, up to those of the largest batch, and the parts of a step of
each method and of greedy decoding over the run's first example. It takes some seconds, more where
passes have hundreds of rows, and is done only where there are batches of several sizes to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from ppdbench.bench.interleaved import BASELINE, Interleaved, PreparedMethod
from ppdbench.bench.labels import label_alone
from ppdbench.bench.profile import Meter
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request
from ppdbench.engine.session import Session
from ppdbench.methods import method
from ppdbench.runs.records import PassModel, StepParts
from ppdbench.runs.workload import Item, Report
from ppdbench.trees.latency import Latency, measure_latency

ROUNDS = 9  # of passes, as far as there is time for them
PASSES_S = 3.0
STEPS_ROUNDS = 4  # over the example; the first of them warms up
STEPS_S = 3.0
TOKENS = 16  # of the example's output


def measure_pass_model(
    alone: Interleaved,
    methods: Sequence[PreparedMethod],
    item: Item,
    sizes: Sequence[int],
    report: Report,
) -> PassModel:
    """Time passes and steps; `alone` decodes one sequence at a time, `methods` are of all sizes."""
    began = perf_counter()
    ours = _one_of_each(methods)
    rows = max([entry.decoder.rows for entry in ours], default=1)
    curve = _curve(alone, item, rows * max(sizes), report)
    return PassModel(
        context=curve.context,
        rows=list(curve.sizes),
        ms=[round(1e3 * seconds, 5) for seconds in curve.smooth],
        steps=_steps(alone, ours, item),
        seconds=round(perf_counter() - began, 3),
    )


def _one_of_each(methods: Sequence[PreparedMethod]) -> list[PreparedMethod]:
    """Keep each method once, under the label that it has alone."""
    found: dict[str, PreparedMethod] = {}
    for entry in methods:
        label = label_alone(entry.label, entry.size)
        if not entry.decoder.foreign:
            found.setdefault(label, replace(entry, label=label, slots=()))
    return [entry for entry in found.values() if entry.decoder.alone is None]


def _curve(alone: Interleaved, item: Item, most: int, report: Report) -> Latency:
    """Passes up to so many rows, or as many as the model runs behind the example's prompt."""
    loaded = alone.loaded
    room = loaded.max_positions - 1
    context = max(1, min(len(item.ids) + item.max_new_tokens // 2, room // 2))
    return measure_latency(
        loaded,
        sizes_up_to(min(most, room + 1 - context)),
        context=context,
        rounds=ROUNDS,
        warmup=1,
        most_s=PASSES_S,
        report=report,
    )


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: each power of two, what lies half-way to the next, and `most`."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({n for power in powers for n in (power, power + power // 2) if n < most} | {most})


def _steps(
    alone: Interleaved, methods: Sequence[PreparedMethod], item: Item
) -> dict[str, StepParts]:
    """The parts of a step of each method, and of greedy decoding as the baseline."""
    greedy = method("greedy")
    decoder = greedy.build({}).prepare(alone.setup)
    entries = [PreparedMethod(BASELINE[0], greedy, decoder), *methods]
    item = replace(item, max_new_tokens=min(item.max_new_tokens, TOKENS))
    rows = max(entry.decoder.rows for entry in entries)
    session = Session(alone.loaded.staged, alone.setup.capacity, spare=rows)
    until = perf_counter() + STEPS_S
    found: dict[str, list[Decoded]] = {entry.label: [] for entry in entries}
    for number in range(STEPS_ROUNDS):
        if number > 1 and perf_counter() > until:
            break
        for entry in entries if number % 2 else entries[::-1]:
            decoded = _profiled(entry.decoder, session, alone.request(item, entry.label))
            if decoded is not None and number > 0:
                found[entry.label].append(decoded)
    return {label: parts for label, made in found.items() if (parts := _parts(made)) is not None}


def _profiled(decoder: Decoder, session: Session, request: Request) -> Decoded | None:
    """An output with its profile; None of a method that fails, as the run will tell."""
    meter = Meter(session.model, request.clock)
    try:
        with meter.over(decoder):
            decoded = decoder.decode(session, request)
    except Exception:
        return None
    return replace(decoded, profile=meter.profile(decoded))


def _parts(outputs: Sequence[Decoded]) -> StepParts | None:
    """The means of all steps of some outputs; None where there is none."""
    steps = sum(len(decoded.steps) for decoded in outputs)
    if not steps:
        return None

    def mean(name: str) -> float:
        return round(sum((decoded.profile or {})[name] for decoded in outputs) / steps, 5)

    return StepParts(
        rows=sum(sum(decoded.rows) for decoded in outputs) / steps,
        **{name: mean(name) for name in ("pass_ms", "draft_pass_ms", "draft_ms")},
        bookkeeping_ms=mean("bookkeeping_ms"),
    )
