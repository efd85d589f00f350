"""Unfinished runs: the examples that a stored run lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def unfinished(header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> str | None:
    """Say in a sentence how much is missing; None where all is there, failures included.

    Of sweeps nothing is said: how many examples a cell gets is decided on the way. Nor of runs of
    earlier versions, which do not say how many examples they have.
    """
    if header["kind"] == "sweep":
        return None
    examples = [source.get("examples") for source in header.get("data", {}).values()]
    if not examples or None in examples:
        return None
    wanted = sum(examples) * _subjects(header)
    done = sum(sample.get("turn", 1) == 1 for sample in samples)
    if done >= wanted:
        return None
    return f"Unfinished: {wanted - done} of {wanted} samples are missing; finish it with --resume."


def _subjects(header: Mapping[str, Any]) -> int:
    """Count the samples of each example: one for each method, or for each target of a probe."""
    if header["kind"] == "probe":
        return len(header["config"].get("targets") or [None])
    return len(header["methods"].keys() - (header.get("not_run") or {}).keys())
