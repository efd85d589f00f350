"""Bayesian optimisation over yes-or-no choices: a Gaussian process and expected improvement.

The covariance of two points falls with the number of choices in which they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NOISE = 1e-3  # variance, of values scaled to 1: what is measured on few examples is uncertain
# Differing choices, as a share of all, after which two points say little about each other.
REACHES = (0.03, 0.1, 0.3, 1.0)


class GaussianProcess:
    """A guess, with its uncertainty, at what points give that were not tried."""

    def __init__(self, points: Array, values: Array) -> None:
        """`points` [n, choices] of 0 and 1, `values` [n]."""
        self.points = points.astype(float)
        self.middle, spread = float(values.mean()), float(values.std())
        self.spread = spread if spread > 0 else 1.0
        scaled = (values - self.middle) / self.spread
        fits = [self._fit(reach * points.shape[1], scaled) for reach in REACHES]
        _, self.reach, self._whitening, self._weights = max(fits, key=lambda fit: fit[0])

    def _fit(self, reach: float, scaled: Array) -> tuple[float, float, Array, Array]:
        """Return the likelihood of the values under this reach, and all that predictions need."""
        covariance = self._covariance(self.points, reach) + NOISE * np.eye(len(scaled))
        root = np.linalg.cholesky(covariance)
        whitening = np.linalg.inv(root)
        weights = whitening.T @ (whitening @ scaled)
        likelihood = -0.5 * float(scaled @ weights) - float(np.log(np.diag(root)).sum())
        return likelihood, reach, whitening, weights

    def _covariance(self, points: Array, reach: float) -> Array:
        counts = points.sum(1)[:, None] + self.points.sum(1)[None]
        differing = counts - 2 * points @ self.points.T
        covariance: Array = np.exp(-differing / reach)
        return covariance

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at each of `points`."""
        across = self._covariance(points.astype(float), self.reach)
        mean = across @ self._weights
        known = self._whitening @ across.T
        variance = np.clip(1.0 - (known**2).sum(0), 0.0, None)
        return self.middle + self.spread * mean, self.spread * np.sqrt(variance)


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return how much each point is expected to exceed `best`, counting no losses."""
    gain = mean - best
    safe = np.where(deviation > 0, deviation, 1.0)
    z = gain / safe
    below = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Array = np.where(
        deviation > 0, gain * below + safe * density, np.maximum(gain, 0.0)
    )
    return improvement


def candidates(best: Sequence[int], count: int, generator: np.random.Generator) -> Array:
    """Points to consider: half differ from the best one in 1 to 3 choices, half lie anywhere."""
    half, choices = count // 2, len(best)
    order = generator.random((half, choices)).argsort(1).argsort(1)
    near = np.array(best) ^ (order < generator.integers(1, 4, (half, 1)))
    return np.vstack([near, anywhere(count - half, choices, generator)])


def anywhere(count: int, choices: int, generator: np.random.Generator) -> Array:
    """Random points; how many of the choices of each are 1 is itself random."""
    share = generator.uniform(0.05, 0.6, (count, 1))
    return (generator.random((count, choices)) < share).astype(int)
