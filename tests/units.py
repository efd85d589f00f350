"""Runs of `ppd` on units, as stored."""

from __future__ import annotations

from typing import Any


def greedy_by_threads(steps: int) -> dict[str, dict[str, float]]:
    """Greedy decoding in 5 ms a token with one thread and 4 with two, as a sample has it."""
    return {
        str(threads): {"prefill_ms": 12.0, "step_ms": ms * steps, "steps": steps}
        for threads, ms in ((1, 5.0), (2, 4.0))
    }


# What the header of a run says of `ppd` on two units.
TWO_UNITS: dict[str, Any] = {
    "form": "split",
    "n_layers": 4,
    "exit_after": 2,
    "k": 3,
    "units": 2,
    "threads_per_unit": 1,
    "weight_bytes_per_unit": [60, 50],
    "layer_times": {
        "lower": 2.0,
        "ahead": 2.5,
        "middle": 0.0,
        "upper": 2.0,
        "head": 1.0,
        "early_head": 0.5,
    },
}
