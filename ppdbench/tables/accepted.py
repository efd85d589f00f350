"""The runs that a table may show: of one model, asked one way, and no figure from two of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from ppdbench.errors import DataError
from ppdbench.runs.drawing import GREEDY, drawn_words
from ppdbench.runs.prompting import other_prompts
from ppdbench.runs.records import DecodingHeader, DraftsHeader, ModelFacts
from ppdbench.runs.store import StoredRun


def check_runs(runs: Sequence[StoredRun]) -> None:
    """Refuse runs without samples, and models side by side as if they were one."""
    for run in runs:
        if not run.samples:
            raise DataError(f"{run.path} holds no finished sample; {_why_empty(run)}")
    models = {_identity(run.header.model): run for run in runs}
    if len(models) > 1:
        (first, one), (second, other), *_ = models.items()
        raise DataError(
            f"{one.path} is of {_named(first)}, {other.path} of {_named(second)}; a table is of "
            "one model, give runs of one"
        )
    for before, run in pairwise(runs):
        if differ := other_prompts(before.header, run.header):
            raise DataError(
                f"{before.path} and {run.path} were asked otherwise: {differ}; give runs alike"
            )


def _why_empty(run: StoredRun) -> str:
    """Say why no method ran, or how a run that was cut off comes to have samples."""
    methods, without = run.header.methods, run.header.not_run
    if without and methods.keys() <= without.keys():
        return "; ".join(not_run([run]))
    return "finish it with --resume"


def not_run(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """Name the methods that could not run, and why: each reason once."""
    every = (item for run in runs for item in run.header.not_run.items())
    return tuple(dict.fromkeys(f"{label} did not run: {why}" for label, why in every))


def check_shown(name: str, runs: Sequence[StoredRun], *, drawn: bool) -> None:
    """Refuse what the table called `name` would show as something else, and the same twice.

    A table of greedy decoding has no `drawn` tokens, and none is of several sequences at once.
    """
    targets: dict[str, StoredRun] = {}
    for run in runs:
        if isinstance(run.header, DecodingHeader):
            _check_decoding(name, run, run.header, drawn=drawn)
            if (target := run.header.config.target).kind != GREEDY:
                targets.setdefault(str(target), run)
    if len(targets) > 1:
        paths = " and ".join(str(run.path) for run in targets.values())
        raise DataError(f"{paths} draw their tokens otherwise; give one")
    origin: dict[Hashable, StoredRun] = {}
    for run in runs:
        for task, label, key in _held(run):
            other = origin.setdefault(key, run)
            if other is not run and not _guessed_alike(task, other, run):
                raise DataError(f"{label} on {task} is in {other.path} and in {run.path}; give one")


def _check_decoding(name: str, run: StoredRun, header: DecodingHeader, *, drawn: bool) -> None:
    target = header.config.target
    if target.kind != GREEDY and not drawn:
        raise DataError(
            f"{run.path} draws its tokens ({drawn_words(target)}), and "
            f"table {name} is of greedy decoding; give a run without --target"
        )
    most = max(about.batch for about in header.methods.values())
    if most > 1:
        raise DataError(
            f"{run.path} decodes {most} sequences together, and table {name} is of one at a time; "
            "give a run without --batch"
        )


def _held(run: StoredRun) -> Iterator[tuple[str, str, Hashable]]:
    """Name what a run has figures of: a task, a label, and what is the same in another run."""
    header = run.header
    if isinstance(header, DecodingHeader | DraftsHeader):
        for task, label in dict.fromkeys((sample.task, sample.method) for sample in run.samples):
            if (about := header.methods.get(label)) is None:
                continue
            options = msgspec.json.encode(about.options, order="sorted")
            target = header.config.target if isinstance(header, DecodingHeader) else header.kind
            yield task, label, (str(target), task, about.name, options)


def _guessed_alike(task: str, one: StoredRun, other: StoredRun) -> bool:
    """True of guesses on the same examples: they are the same each time, as times never are."""
    if not all(isinstance(run.header, DraftsHeader) for run in (one, other)):
        return False
    headers = one.header, other.header
    asked = [(header.data.get(task), header.config.max_new_tokens) for header in headers]
    return asked[0] == asked[1]


def _identity(model: ModelFacts) -> tuple[Any, ...]:
    return model.name, model.dtype, model.revision, model.weight_hash


def _named(identity: tuple[Any, ...]) -> str:
    name, dtype, *marks = identity
    return f"{name} ({', '.join(str(mark) for mark in (dtype, *marks) if mark)})"
