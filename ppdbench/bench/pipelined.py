"""Predictive Pipelined Decoding held against its own theory, from stored samples; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench import theory
from ppdbench.bench.claims import TimedPair, claim
from ppdbench.bench.sums import SampleSums
from ppdbench.runs.records import GreedyTimes

Facts = Mapping[str, Any]

# Of the numbers of threads that greedy decoding was timed with, beside units.
UNITS: dict[str, Callable[[Iterable[int]], int]] = {"one_unit": min, "all_units": max}


def pipelined(facts: Facts | None, group: Sequence[SampleSums], failed: int = 0) -> dict[str, Any]:
    """Summarize what `ppd` reports beyond other methods; nothing for these.

    Three predictions of the speedup over one unit: the theorem with the measured match rate, the
    same cost for the very matches that were found, and these with this machine's layer times.
    Gain efficiency is the share of the theorem's gain that was measured.
    """
    timed = [one for one in group if one.matches]
    if facts is None or not timed:
        return {}
    n_layers, exit_after, k = (facts[name] for name in ("n_layers", "exit_after", "k"))
    p, begun = match_rate(timed), _begun(timed)
    predicted = 1 / theory.latency_per_token(n_layers, exit_after, p)
    tokens = sum(one.tokens for one in timed)
    over = _over_greedy(timed, failed)
    measured = over["speedup_one_unit"]
    return {
        "form": facts["form"],
        "p": p,
        "p_positions": sum(len(one.matches) for one in timed),
        "predicted_speedup": predicted,
        "predicted_speedup_matches": _predicted_by_matches(facts, begun),
        "predicted_speedup_times": _predicted_by_times(facts, begun),
        **over,
        **_on_one_unit(timed),
        "gain_efficiency": gain_efficiency(measured, predicted),
        "communication_ms_per_token": _communication_ms(timed) / tokens,
        "communication_share": _communication_ms(timed) / (facts["units"] * _output_ms(timed)),
        "units": facts["units"],
        "units_busy": _units_busy(facts, len(timed), begun),
        "units_busy_predicted": theory.compute_per_time_unit(n_layers, exit_after, k, p),
        "weight_bytes_per_unit": facts["weight_bytes_per_unit"],
        "run_lengths": theory.ended_runs([s.matches for s in timed]),
    }


def _communication_ms(group: Sequence[SampleSums]) -> float:
    """Sum up what all units waited for messages, those of the prompt among them."""
    return sum(one.sample.communication_ms or 0 for one in group)


def _output_ms(group: Sequence[SampleSums]) -> float:
    """Sum up what the outputs took with their prompts: each unit was there as long."""
    return sum(one.sample.prefill_ms + one.every_ms for one in group)


def match_rate(group: Sequence[SampleSums]) -> float:
    """Return how often the token was among its candidates, over all positions."""
    return sum(s.matches.count(1) for s in group) / sum(len(s.matches) for s in group)


def beside_greedy(one: SampleSums, which: Callable[[Iterable[int]], int]) -> tuple[float, float]:
    """Milliseconds of greedy decoding, on one unit or on all, and of ours for as many tokens.

    Of two outputs that part at a tie one may be the longer.
    """
    greedy = _greedy_on(one, which)
    return greedy.step_ms, one.step_ms * one.as_long_as(greedy.steps)


def _greedy_on(one: SampleSums, which: Callable[[Iterable[int]], int]) -> GreedyTimes:
    """Return greedy decoding's times for the same example on the threads of one unit, or of all."""
    by_threads = _alone(one)
    return by_threads[str(which(map(int, by_threads)))]


def _alone(one: SampleSums) -> Mapping[str, GreedyTimes]:
    """Greedy decoding beside units, by threads."""
    return one.sample.greedy_by_threads or {}


def gain_efficiency(measured: float | None, predicted: float) -> float | None:
    """The share of the predicted gain that was measured."""
    return None if measured is None or predicted <= 1 else (measured - 1) / (predicted - 1)


def geometric(p: float, length: int) -> float:
    """The share of runs of this length if matches are independent."""
    return float(p ** (length - 1) * (1 - p))


@dataclass(frozen=True, slots=True)
class HeadStarts:
    """Steps after the first token, and how many of them began with a head start."""

    steps: int
    hits: int


def _begun(group: Sequence[SampleSums]) -> HeadStarts:
    hits = sum(s.matches[:-1].count(1) for s in group)
    return HeadStarts(sum(len(s.matches) - 1 for s in group), hits)


def _predicted_by_matches(facts: Facts, begun: HeadStarts) -> float | None:
    """Layer-times of greedy decoding over those that these matches need, after the prefill."""
    layers, exit_after = facts["n_layers"], facts["exit_after"]
    needed = begun.steps * layers - begun.hits * (layers - exit_after)
    return begun.steps * layers / needed if begun.steps else None


def _predicted_by_times(facts: Facts, begun: HeadStarts) -> float | None:
    """The same with the time that each part takes here, heads included, when it runs alone.

    Both halves run at the same time, and the slower one decides.
    """
    ms, steps, hits = facts["layer_times"], begun.steps, begun.hits
    together = max(ms["early_head"] + ms["ahead"], ms["upper"] + ms["head"])
    if facts["form"] == "replicated":
        together = ms["early_head"] + max(ms["lower"] - ms["middle"], ms["upper"] + ms["head"])
    needed = steps * together + hits * ms["middle"] + (steps - hits) * ms["lower"]
    greedy = steps * (ms["lower"] + ms["upper"] + ms["head"])
    return greedy / needed if steps else None


def _units_busy(facts: Facts, outputs: int, begun: HeadStarts) -> float:
    """Layers run over layer-times, counted from the matches themselves."""
    layers, exit_after, k = (facts[name] for name in ("n_layers", "exit_after", "k"))
    tokens, runs = outputs + begun.steps, outputs + begun.steps - begun.hits
    ran = theory.compute_of_runs(tokens, runs, layers, exit_after, k)
    return ran / theory.latency_of_runs(tokens, runs, layers, exit_after)


def _on_one_unit(group: Sequence[SampleSums]) -> dict[str, float | None]:
    """Greedy decoding itself, beside the units."""
    runs = [_greedy_on(s, min) for s in group if _alone(s)]
    steps = sum(run.steps for run in runs)
    return {
        "greedy_prefill_ms": sum(run.prefill_ms for run in runs) / len(runs) if runs else None,
        "greedy_ms_per_token": sum(run.step_ms for run in runs) / steps if steps else None,
    }


def _over_greedy(group: Sequence[SampleSums], failed: int) -> dict[str, Any]:
    """Against greedy decoding on one unit and on all of them; nothing for one process."""
    found: dict[str, Any] = {}
    for name, which in UNITS.items():
        beside = [TimedPair((s,), beside_greedy(s, which)) for s in group if _alone(s)]
        found |= claim(beside, failed).figures(f"speedup_{name}")
    return found
