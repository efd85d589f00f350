"""Accuracies made up for tests."""

from __future__ import annotations

import random

from ppdbench import methods as methods
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.record import RANKS, RankedOutput


def accuracies(*distances: tuple[float, ...], method: str = "medusa", n: int = 1000) -> Accuracies:
    """With these probabilities, by distance and rank."""
    return Accuracies(method, tuple(tuple(round(p * n) for p in row) for row in distances), n)


def drawn(seed: int, distances: int = 3, top: int = 6, method: str = "prompt-tokens") -> Accuracies:
    """Falling with distance and, mostly, with rank, as measured ones do."""
    draw = random.Random(seed)
    n, best = 5000, draw.uniform(0.3, 0.8)
    hits = []
    for _ in range(distances):
        left, share, row = n, best, []
        for _ in range(top):
            row.append(int(left * share * draw.uniform(0.5, 1.0)))
            left -= row[-1]
            share *= draw.uniform(0.3, 0.9)
        hits.append(tuple(row))
        best *= draw.uniform(0.5, 0.95)
    return Accuracies(method, tuple(hits), n)


def outputs(
    seed: int, n: int = 6, tokens: int = 40, distances: int = 3
) -> tuple[RankedOutput, ...]:
    """Easy and hard stretches in turns: in easy ones guesses are right, in hard ones wrong."""
    draw = random.Random(seed)
    made = []
    for number in range(n):
        easy = [draw.random() < 0.5 for _ in range(1 + tokens // 8)]
        ranks = [
            [_rank(draw, easy[(place + d) // 8]) for place in range(tokens - d)]
            for d in range(distances)
        ]
        made.append(RankedOutput.of(f"task {number % 2}", ranks))
    return tuple(made)


def _rank(draw: random.Random, easy: bool) -> int:
    return min(int(draw.expovariate(2 if easy else 0.05)), RANKS)
