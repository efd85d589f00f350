"""The Gaussian process that expects something of sets not yet tried."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ppdbench.methods.draft_verify.gaussian import GaussianProcess, expected_improvement


def test_the_process_passes_through_what_was_measured_and_doubts_the_rest() -> None:
    points = np.array(list(itertools.product([0, 1], repeat=4)))
    values = points @ np.array([1.0, -2.0, 0.5, 3.0])
    process = GaussianProcess(points[::2], values[::2])
    mean, deviation = process.predict(points)
    assert np.abs(mean[::2] - values[::2]).max() < 0.05
    assert deviation[1::2].min() > deviation[::2].max()


def test_expected_improvement_is_the_integral_over_gains() -> None:
    mean, deviation, best = np.array([1.0, 0.2, 2.0]), np.array([0.5, 1.0, 0.0]), 1.2
    draws = np.random.default_rng(0).normal(size=400_000)
    truth = [
        np.maximum(m + d * draws - best, 0).mean() for m, d in zip(mean, deviation, strict=True)
    ]
    assert expected_improvement(mean, deviation, best) == pytest.approx(truth, abs=2e-3)
