"""Verdicts of methods in batches, counted: what `benchmarks.batches --exact` keeps and shows.

An output is compared twice: with greedy decoding of its prompt alone, which gives its verdict, and
with what the same method gives alone, which holds of methods that are not exact too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ppdbench.bench.labels import label_alone
from ppdbench.engine.flat.choice import FLAT, kind_of_passes
from ppdbench.errors import ConfigError
from ppdbench.report.sheet import Cell, Sheet, marked
from ppdbench.runs.records import Header, Sample, decoding

FILES = "exact-"  # how the names of files begin
VERDICTS = ("identical", "tie", "mismatch", "inexact", "failed")
NOTES = (
    "float32, bfloat16: outputs that are greedy decoding's of that prompt alone, of all.",
    "inexact: other outputs, of a method that is not exact. changed: outputs that are not those "
    "of the same method alone.",
)


class CountedRun(Protocol):
    """A run, just made or read back."""

    @property
    def header(self) -> Header:
        """The header: what was run, on what."""
        ...

    @property
    def samples(self) -> Sequence[Sample]:
        """The outcome of each example and method."""
        ...


class MethodVerdicts(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of a method over one task, in batches of one size and one number type."""

    method: str
    task: str
    dtype: str
    batch: int
    verdicts: dict[str, int]
    changed: int


class VerdictCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of all methods on one model, and the machine that they are from.

    `lacking` says of others why they do not run on it, or not in batches.
    """

    machine: str
    model: str
    examples: int
    tokens: int
    methods: list[MethodVerdicts]
    lacking: list[str]


# Counting


def counted(runs: Iterable[CountedRun]) -> list[MethodVerdicts]:
    """Count the verdicts of runs of one task each, by method and size of the batch."""
    return [each for run in runs for each in _counted(run)]


def _counted(run: CountedRun) -> list[MethodVerdicts]:
    kinds = Counter((s.method, s.verdict) for s in run.samples)
    others = changed(run)
    return [
        MethodVerdicts(
            method=label_alone(label, about.batch),
            task=", ".join(run.header.data),
            dtype=run.header.model.dtype,
            batch=about.batch,
            verdicts={kind: n for kind in VERDICTS if (n := kinds[label, kind])},
            changed=others[label],
        )
        for label, about in decoding(run.header).methods.items()
    ]


def changed(run: CountedRun) -> Counter[str]:
    """Count by label the outputs that are not those of the same method alone."""
    methods, found = decoding(run.header).methods, Counter[str]()
    outputs = {(s.method, s.task, s.example_id): _ids(s) for s in run.samples}
    for (label, task, example), ids in outputs.items():
        alone = outputs.get((label_alone(label, methods[label].batch), task, example))
        found[label] += None not in (ids, alone) and ids != alone
    return found


def _ids(sample: Sample) -> list[int] | None:
    ids = getattr(sample, "output_ids", None)  # one that failed has none
    return None if ids is None else list(ids)


def left_out(runs: Iterable[CountedRun]) -> list[str]:
    """Say of methods that could not run why, once for all sizes of batches."""
    found: dict[str, str] = {}
    for run in runs:
        for label, why in not_there(run).items():
            name, _, in_batch = label.partition(" (batch ")
            found.setdefault(name, f"{name}{' (in batches)' if in_batch else ''}: {why}")
    return list(found.values())


def not_there(run: CountedRun) -> dict[str, str]:
    """Methods of a run that could not run, by label, and why."""
    return {**(run.header.left_out or {}), **run.header.not_run}


def joined(found: VerdictCounts, path: Path | None) -> VerdictCounts:
    """Join what was counted with the tasks of the file it goes to that were not counted anew.

    The machine is that of what was counted last.
    """
    if path is None or not path.exists():
        return found
    before, name = stored(path), "{0.model}, {0.examples} examples, {0.tokens} tokens".format
    if name(before) != name(found):
        raise ConfigError(
            f"{path} is of {name(before)}, these counts of {name(found)}; name another file, or "
            "delete it"
        )
    anew = {(each.task, each.dtype) for each in found.methods}
    kept = [each for each in before.methods if (each.task, each.dtype) not in anew]
    lacking = [*dict.fromkeys((*before.lacking, *found.lacking))]
    return msgspec.structs.replace(found, methods=[*kept, *found.methods], lacking=lacking)


# Judging


def is_flat(run: CountedRun) -> bool:
    """True if passes of a run compute a row alike whatever stands beside it."""
    passes = run.header.passes
    return passes is not None and kind_of_passes(passes.kernels) == FLAT


def is_wrong(run: CountedRun, *, flat: bool) -> bool:
    """True if an output is not greedy's; where passes are flat, rounding is no excuse."""
    refused = {"mismatch", "failed"} | ({"tie"} if flat else set())
    methods = decoding(run.header).methods
    if any(s.verdict in refused and methods[s.method].exact for s in run.samples):
        return True
    return flat and any(changed(run).values())


# Showing


def by_label(run: CountedRun) -> Sheet:
    """The verdicts of a run by method and batch."""
    counts = Counter((s.method, s.verdict) for s in run.samples)
    every = Counter(s.verdict for s in run.samples)
    rows: list[tuple[Cell, ...]] = [
        (label, *(counts[label, kind] for kind in VERDICTS)) for label in run.header.methods
    ]
    rows.append(("all", *(every[kind] for kind in VERDICTS)))
    passes = "" if run.header.passes is None else f", {run.header.passes.kernels} passes"
    task = ", ".join(run.header.data)
    title = f"Verdicts: {task}, {run.header.model.name}, {run.header.model.dtype}{passes}"
    return Sheet(title, ("method", *VERDICTS), tuple(rows))


def sheets(found: VerdictCounts) -> list[Sheet]:
    """The table of all methods, over all tasks and sizes, with the machine below it."""
    dtypes = list(dict.fromkeys(each.dtype for each in found.methods))
    sizes = ", ".join(map(str, sorted({each.batch for each in found.methods})))
    tasks = ", ".join(dict.fromkeys(each.task for each in found.methods))
    rows = [
        (name, *_cells([each for each in found.methods if each.method == name], dtypes))
        for name in dict.fromkeys(each.method for each in found.methods)
    ]
    rows.append(("all", *_cells(found.methods, dtypes)))
    table = Sheet(
        f"Verdicts of all methods: {found.model}, batches of {sizes}",
        ("method", *dtypes, *VERDICTS[1:], "changed"),
        tuple(rows),
        notes=(
            f"{found.examples} examples of each of {tasks}; {found.tokens} tokens of each output.",
            *NOTES,
            *found.lacking,
        ),
    )
    return marked([table], found.machine)


def _cells(group: Sequence[MethodVerdicts], dtypes: Sequence[str]) -> list[Cell]:
    """The outputs that are greedy's, by type, then all others by verdict."""
    same: list[Cell] = []
    for dtype in dtypes:
        own = [each.verdicts for each in group if each.dtype == dtype]
        outputs = sum(sum(verdicts.values()) for verdicts in own)
        same.append(f"{sum(verdicts.get(VERDICTS[0], 0) for verdicts in own)} of {outputs}")
    others = [sum(each.verdicts.get(kind, 0) for each in group) for kind in VERDICTS[1:]]
    return [*same, *others, sum(each.changed for each in group)]


def stored(path: Path) -> VerdictCounts:
    """Read what was kept."""
    return msgspec.json.decode(path.read_bytes(), type=VerdictCounts)
