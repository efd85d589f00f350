"""Stored sweeps written by hand: greedy takes 10 ms per token, a cell that over its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tests import records

STEPS = 4
Axes = Mapping[str, Sequence[Any]]


def label(**at: Any) -> str:
    """The label of a cell."""
    return "layerskip:" + ",".join(f"{name}={value}" for name, value in at.items())


def header(axes: Axes, examples: int, **changes: Any) -> dict[str, Any]:
    """What `run.json` says of a plain grid."""
    places = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    typed = {name: list(map(str, values)) for name, values in axes.items()}
    model = {"revision": None, "dtype": "auto", "device": "auto", "trust_remote_code": False}
    base = {
        "schema_version": 1,
        "kind": "sweep",
        "config": {
            "model": {"name": "./my model", **model},
            "tasks": ["gsm8k"],
            "data": "builtin",
            **dict.fromkeys(("split", "limit", "max_new_tokens", "threads")),
            "shots": 0,
            "seed": 0,
            "strict": False,
            "search": "grid",
            "target": {"kind": "greedy", "top_k": 3, "top_p": 0.95, "temperature": 1.0},
            "space": {"method": "layerskip", "axes": typed, "fixed": {}},
        },
        "data": {"gsm8k": {"metrics": []}},
        "model": {"name": "m", "dtype": "float32", "synthetic": False},
        "methods": {
            label(**at): {"name": "layerskip", "exact": True, "options": at, "loaded": {}}
            for at in places
        },
        "not_run": {},
        "facts": {},
        "rungs": [{"cells": len(places), "examples": examples}],
    }
    return {**base, **changes}


def sample(
    method: str, number: int, speed: float, verdict: str = "identical", slower: float = 1.0
) -> dict[str, Any]:
    """One example of a cell; `slower`: by how much the whole machine was, baseline included."""
    facts: dict[str, Any] = {
        "task": "gsm8k",
        "example_id": str(number),
        "method": method,
        "verdict": verdict,
        "number": number,
        "output_ids": [],
        "peak_memory_bytes": 1,
    }
    if verdict == "failed":
        return {**facts, "error": "it broke"}
    return facts | {
        "output_ids": list(range(STEPS + 1)),
        "accepted": [0] * STEPS,
        "proposed": [0] * STEPS,
        "draft_ms": [],
        "prefill_ms": 1.0,
        "step_ms": [10.0 * slower / speed] * STEPS,
        "baseline_step_ms": [10.0 * slower] * STEPS,
        "baseline_again_ms": 10.0 * slower * STEPS,
        "cut_tokens": 0,
    }


def cells(speeds: Mapping[str, float], examples: int = 6) -> list[dict[str, Any]]:
    """Samples of cells with these speeds over an even number of examples that vary a little."""
    return [
        sample(name, number, speed / (1 + 0.01 * (-1) ** number))
        for name, speed in speeds.items()
        for number in range(examples)
    ]


def write(folder: Path, head: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> Path:
    """A run folder."""
    return records.write_run(folder, samples=samples, **head)
