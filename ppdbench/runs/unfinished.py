"""Unfinished runs: the examples that a stored run lacks."""

from __future__ import annotations

from collections.abc import Iterable

from ppdbench.runs.records import Asked, DraftsHeader, Header, ProbeHeader


def unfinished(header: Header, samples: Iterable[Asked]) -> str | None:
    """Say in a sentence how much is missing; None where all is there, failures included.

    Of sweeps nothing is said: how many examples a cell gets is decided on the way.
    """
    if header.kind == "sweep" or not header.data:
        return None
    # Earlier versions did not say how many turns there are, so there first turns have to do.
    turns = {task: source.turns for task, source in header.data.items() if source.turns}
    if isinstance(header, ProbeHeader | DraftsHeader):
        turns = {}
    each = sum(turns.get(task, source.examples) for task, source in header.data.items())
    wanted = each * _subjects(header)
    done = sum(sample.task in turns or not sample.is_later for sample in samples)
    if done >= wanted:
        return None
    return f"Unfinished: {wanted - done} of {wanted} samples are missing; finish it with --resume."


def _subjects(header: Header) -> int:
    """Count the samples of each example: one for each method, or for each target of a probe."""
    if isinstance(header, ProbeHeader):
        return len(header.config.targets)
    return len(header.methods.keys() - header.not_run.keys())
