"""Runs of `ppd` on units, as stored."""

from __future__ import annotations

from typing import Any

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
