"""Latency and compute of Predictive Pipelined Decoding, before running anything.

While the main process finishes the layers after `exit_after` for one token, `k`
sub-processes already run the first layers for the `k` likeliest next tokens. One layer of
one process is the unit of time and of compute; a match rate `p` decides how often the head
start is worth something.

Source: "Predictive Pipelined Decoding: A Compute-Latency Trade-off for Exact LLM Decoding",
Theorem 4.1 and equations 3, 5 and 6. The paper gives the equations for `exit_after` at half
of the layers; here they hold for any later exit too. Matches are taken as independent; for a
recorded sequence of matches the exact cost is computed instead.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ppdbench.errors import ConfigError
from ppdbench.files import papers

MOST_PLAYED = 10**8  # layers of all tokens of all runs: about half a minute
MOST_LAYERS, MOST_TOKENS, MOST_K = 10_000, 10**9, 10**6


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """The cost of PPD: per token in the limit of long outputs, and in all for a given length."""

    latency_per_token: float
    """Time for one token; 1 is what greedy decoding needs (equation 3 / d)."""
    compute_per_time_unit: float
    """Processes busy at a time, on average; 1 for greedy decoding (equation 5)."""
    compute_per_token: float
    """Compute for one token; 1 is what greedy decoding needs (equation 6)."""
    expected_latency: float
    """Layer-times for the whole output, exact for any length (Theorem 4.1)."""
    expected_compute: float
    """Layers run by all processes for the whole output, exact for any length."""

    @property
    def speedup(self) -> float:
        """The speedup over greedy decoding of the same number of tokens."""
        # Sub-processes alone: in all, and as a share of a greedy token's layers.
        ahead = self.expected_compute - self.expected_latency
        ahead_per_token = self.compute_per_token - self.latency_per_token
        return ahead / ahead_per_token / self.expected_latency


@dataclass(frozen=True, slots=True)
class Simulation:
    """Mean and standard error over simulated generations, in layer-times and layers."""

    latency: float
    latency_error: float
    compute: float
    compute_error: float
    runs: int


@dataclass(frozen=True, slots=True)
class MatchRate:
    """A match rate: how often the final token was among the `k` early candidates."""

    task: str
    k: int
    trained: bool
    match_rate: float


@dataclass(frozen=True, slots=True)
class FigurePoint:
    """One match rate's place in Figures 3 and 4 of the paper."""

    task: str
    k: int
    trained: bool
    match_rate: float
    latency_per_token: float
    compute_per_time_unit: float
    compute_per_token: float

    @property
    def figure_3(self) -> tuple[float, float]:
        """x = compute per time unit, y = latency per token."""
        return self.compute_per_time_unit, self.latency_per_token

    @property
    def figure_4(self) -> tuple[float, float]:
        """x = compute per token, y = latency per token."""
        return self.compute_per_token, self.latency_per_token


def check_exit(n_layers: int, exit_after: int) -> None:
    """Refuse exit layers that PPD cannot pipeline."""
    if n_layers < 2:
        raise ConfigError(f"layers={n_layers}: nothing to pipeline; use 2 layers or more")
    if n_layers > MOST_LAYERS:
        raise ConfigError(f"layers={n_layers}: no model is so deep; use 2..{MOST_LAYERS}")
    first = (n_layers + 1) // 2
    allowed = f"use {first}..{n_layers - 1}"
    if not 1 <= exit_after < n_layers:
        raise ConfigError(
            f"exit_after={exit_after}, but this model has {n_layers} layers; {allowed}"
        )
    if exit_after < first:
        needed = n_layers - exit_after
        raise ConfigError(
            f"exit_after={exit_after} is less than half of {n_layers} layers: a sub-process needs "
            f"the current token's keys and values up to layer {needed}, "
            f"but only {exit_after} layers have run; {allowed}"
        )


def latency_per_token(n_layers: int, exit_after: int, p: float) -> float:
    """Time per token of a long output, as a fraction of greedy's (equation 3 / d)."""
    _check(n_layers, exit_after, p=p)
    return 1 - _skipped(n_layers, exit_after) * p


def compute_per_time_unit(n_layers: int, exit_after: int, k: int, p: float) -> float:
    """Processes busy at a time in a long output, on average (equation 5)."""
    per_token = compute_per_token(n_layers, exit_after, k, p)
    return per_token / latency_per_token(n_layers, exit_after, p)


def compute_per_token(n_layers: int, exit_after: int, k: int, p: float) -> float:
    """Compute per token of a long output, as a multiple of greedy's (equation 6)."""
    _check(n_layers, exit_after, k=k)
    return latency_per_token(n_layers, exit_after, p) + k * _skipped(n_layers, exit_after)


def expected_latency(n_layers: int, exit_after: int, p: float, tokens: int) -> float:
    """Expected layer-times for `tokens` tokens (Theorem 4.1)."""
    _check(n_layers, exit_after, p=p, tokens=tokens)
    return n_layers * tokens - (n_layers - exit_after) * (tokens - 1) * p


def expected_compute(n_layers: int, exit_after: int, k: int, p: float, tokens: int) -> float:
    """Expected layers run for `tokens` tokens, sub-processes after the last one included."""
    _check(n_layers, exit_after, k=k)
    ahead = k * (n_layers - exit_after) * tokens
    return expected_latency(n_layers, exit_after, p, tokens) + ahead


def tradeoff(n_layers: int, exit_after: int, k: int, p: float, tokens: int) -> Tradeoff:
    """Everything the theory says about one setting."""
    return Tradeoff(
        latency_per_token=latency_per_token(n_layers, exit_after, p),
        compute_per_time_unit=compute_per_time_unit(n_layers, exit_after, k, p),
        compute_per_token=compute_per_token(n_layers, exit_after, k, p),
        expected_latency=expected_latency(n_layers, exit_after, p, tokens),
        expected_compute=expected_compute(n_layers, exit_after, k, p, tokens),
    )


def ended_runs(outputs: Iterable[Sequence[bool] | bytes]) -> dict[int, int]:
    """Count runs by length, a run ending with a miss; the last of each output is left out.

    `matches[i]` says whether token `i` was among the candidates launched for it. The last run is
    cut off by the end of the output: a miss on the last token starts no new run.
    """
    import numpy as np  # which formulas do without

    hits = [bytes(matches[:-1]) for matches in outputs]  # a miss is a zero, and ends a run
    ended = [row[:last] for row in hits if (last := row.rfind(0)) >= 0]
    misses = np.flatnonzero(np.frombuffer(b"\0".join([*ended, b""]), np.uint8) == 0)
    lengths, counts = np.unique(np.diff(misses, prepend=-1), return_counts=True)
    return dict(zip(lengths.tolist(), counts.tolist(), strict=True))


def latency_of_runs(tokens: int, runs: int, n_layers: int, exit_after: int) -> float:
    """Exact layer-times of so many tokens in so many runs, of one generation or of several."""
    check_exit(n_layers, exit_after)
    return float(exit_after * tokens + (n_layers - exit_after) * runs)


def compute_of_runs(tokens: int, runs: int, n_layers: int, exit_after: int, k: int) -> float:
    """Exact layers run for so many tokens in so many runs, of one generation or of several."""
    _check(n_layers, exit_after, k=k)
    ahead = k * (n_layers - exit_after) * tokens
    return latency_of_runs(tokens, runs, n_layers, exit_after) + ahead


def simulate(
    n_layers: int, exit_after: int, k: int, p: float, tokens: int, runs: int, seed: int
) -> Simulation:
    """Play the algorithm `runs` times, without using any of the formulas above."""
    _check(n_layers, exit_after, k=k, p=p, tokens=tokens)
    if runs < 2:
        raise ConfigError(f"runs={runs}: a standard error needs 2 or more")
    each = tokens * n_layers
    if runs * each > MOST_PLAYED:
        allowed = MOST_PLAYED // each
        way = f"use {allowed} or fewer" if allowed > 1 else "lower --tokens"
        raise ConfigError(
            f"runs={runs} of {tokens} tokens through {n_layers} layers would take too long; {way}"
        )
    generator = random.Random(seed)
    played = [
        _play(n_layers, exit_after, k, tokens, hit=lambda: generator.random() < p)
        for _ in range(runs)
    ]
    latencies, computes = zip(*played, strict=True)
    return Simulation(
        latency=statistics.fmean(latencies),
        latency_error=_standard_error(latencies),
        compute=statistics.fmean(computes),
        compute_error=_standard_error(computes),
        runs=runs,
    )


def figure_points(
    rates: Iterable[MatchRate], *, n_layers: int = 2, exit_after: int = 1
) -> list[FigurePoint]:
    """Place match rates in Figures 3 and 4.

    Only `exit_after / n_layers` matters, so the default is the paper's half of any model.
    """
    return [
        FigurePoint(
            task=rate.task,
            k=rate.k,
            trained=rate.trained,
            match_rate=rate.match_rate,
            latency_per_token=latency_per_token(n_layers, exit_after, rate.match_rate),
            compute_per_time_unit=compute_per_time_unit(
                n_layers, exit_after, rate.k, rate.match_rate
            ),
            compute_per_token=compute_per_token(n_layers, exit_after, rate.k, rate.match_rate),
        )
        for rate in rates
    ]


def paper_match_rates(layer: int = 20) -> list[MatchRate]:
    """The paper's match rates after `layer` of Vicuna-13B's 40 layers (Table 2)."""

    table = papers.read_paper("ppd/2")
    layers = sorted({row["layer"] for row in table["rows"]})
    if layer not in layers:
        raise ConfigError(f"layer={layer} is not in Table 2; use {', '.join(map(str, layers))}")
    return [
        MatchRate(row["task"], row["k"], row["trained"], row["match_rate"])
        for row in table["rows"]
        if row["layer"] == layer
    ]


def _check(n_layers: int, exit_after: int, *, k: int = 1, p: float = 0.0, tokens: int = 1) -> None:
    check_exit(n_layers, exit_after)
    if k < 1:
        raise ConfigError(f"k={k}: PPD launches candidates; use 1 or more")
    if k > MOST_K:
        raise ConfigError(f"k={k}: so many candidates cannot be launched; use 1..{MOST_K}")
    if not 0 <= p <= 1:
        raise ConfigError(f"p={p} is not a match rate; use a fraction from 0 to 1")
    if tokens < 1:
        raise ConfigError(f"tokens={tokens}: nothing is generated; use 1 or more")
    if tokens > MOST_TOKENS:
        raise ConfigError(f"tokens={tokens}: no output is so long; use 1..{MOST_TOKENS}")


def _skipped(n_layers: int, exit_after: int) -> float:
    """The share of the layers that a match saves, and that one sub-process runs."""
    return (n_layers - exit_after) / n_layers


def _play(
    n_layers: int, exit_after: int, k: int, tokens: int, hit: Callable[[], bool]
) -> tuple[int, int]:
    """Latency and compute of one generation, one layer-time after the other."""
    latency = compute = 0
    done = 0  # layers that the current token has behind it
    for _ in range(tokens):
        ahead = 0  # layers that every candidate for the next token has behind it
        while done < n_layers:
            launched = done >= exit_after
            latency += 1
            compute += 1 + k * launched
            done += 1
            ahead += launched
        done = ahead if hit() else 0
    return latency, compute


def _standard_error(values: Sequence[float]) -> float:
    return float(statistics.stdev(values) / len(values) ** 0.5)
