"""Intervals of probes are over outputs: worked out here by hand, from the design effect on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ppdbench.probe.accuracy import accuracies
from ppdbench.probe.kinds import by_kind
from ppdbench.probe.summary import TOTAL, match_rates
from tests.filled import StoredRanks, typed

Z = 1.959963984540054
# Matches of tokens of five outputs: some nearly all right, some nearly all wrong.
COUNTS = [(9, 10), (1, 12), (8, 8), (0, 9), (7, 11)]


def wilson(p: float, n: float) -> tuple[float, float]:
    centre, half = p + Z * Z / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return (centre - half) / (1 + Z * Z / n), (centre + half) / (1 + Z * Z / n)


def clustered(counts: list[tuple[int, int]]) -> tuple[float, float]:
    k, n = len(counts), sum(of for _, of in counts)
    p = sum(right for right, _ in counts) / n
    between = k / (k - 1) * sum((right - p * of) ** 2 for right, of in counts) / n**2
    return wilson(p, n * (p * (1 - p) / n) / between)


def ranks(right: int, of: int) -> list[int]:
    return [0] * right + [3] * (of - right)


def probed(layers: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "task": "squad",
            "example_id": str(number),
            "target": "greedy",
            "ranks": {str(layer): ranks(*count) for layer in range(1, layers + 1)},
        }
        for number, count in enumerate(COUNTS)
    ]


def test_unlike_outputs_widen_the_interval_of_a_match_rate() -> None:
    rates = match_rates(StoredRanks(probed()), [1], {"squad": 99})
    (rate,) = [rate for rate in rates if rate.bucket == TOTAL]
    assert (rate.low, rate.high) == pytest.approx(clustered(COUNTS))
    low, high = wilson(25 / 50, 50)
    assert rate.high - rate.low > 1.5 * (high - low)


def test_unlike_outputs_widen_the_interval_of_an_accuracy() -> None:
    samples = [
        typed("drafts", {**sample, "method": "medusa", "verdict": "identical"})
        for sample in probed()
    ]
    found = next(a for a in accuracies(samples) if (a.distance, a.k) == (1, 1))
    assert (found.low, found.high) == pytest.approx(clustered(COUNTS))


def test_layers_that_say_the_same_make_no_tokens_of_their_own() -> None:
    (one,) = by_kind(["a"], StoredRanks(probed(1)), [1])
    (many,) = by_kind(["a"] * 6, StoredRanks(probed(6)), [1])
    assert (one.low, one.high) == pytest.approx((many.low, many.high))
    assert (one.low, one.high) == pytest.approx(clustered(COUNTS))
    # Of one output there is no spread to go by, but no more tokens than it has either.
    kinds = ["a"] * 6
    (alone,) = by_kind(kinds, StoredRanks(probed(6)[:1]), [1])
    assert (alone.low, alone.high) == pytest.approx(wilson(9 / 10, 10))
