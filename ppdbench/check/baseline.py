"""The baseline file: a snapshot as JSON that can be committed, one figure per line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from ppdbench.check.figures import Figure, Outputs, Part, rate
from ppdbench.check.snapshot import MethodFacts, Snapshot, TaskData, snapshot
from ppdbench.errors import DataError, counted
from ppdbench.files.json_file import read_versioned, write_versioned
from ppdbench.files.keys import Keys, kind
from ppdbench.runs.records import Header, Sample
from ppdbench.runs.store import SCHEMA_VERSION, read_whole
from ppdbench.runs.validation import CHECKSUM, Unsound, check_seal, seal_of

FORMAT = "ppdbench-baseline"
VERSION = 1
AGAIN = "write it again with --update"
LARGEST = 1 << 53  # of the numbers of a part: far more than a run counts, and a float still exact


def open_baseline(path: Path) -> tuple[Snapshot, bool]:
    """The baseline in a file or run folder, and whether checksums say that nothing was changed."""
    if path.is_dir():
        run = read_whole(path)
        refuse_unsound(path, run.samples, run.header)
        return snapshot(run), not run.unsealed
    missing = "`ppdbench check RUN --baseline FILE --update` writes one"
    keys = read_versioned(path, "baseline", missing, FORMAT, VERSION)
    written = keys.number("schema_version")
    if written != SCHEMA_VERSION:
        raise DataError(
            f"{path} was made from a run of schema version {written}, this ppdbench reads "
            f"{SCHEMA_VERSION}; {AGAIN}"
        )
    found = _read(keys)
    return found, _check_seal(keys)


def _check_seal(keys: Keys) -> bool:
    """True if there is a checksum; one that does not fit is refused."""
    content = {name: keys.anything(name) for name in keys.names()}
    try:
        check_seal(content)
    except Unsound as error:
        raise keys.error(str(error)) from error
    return CHECKSUM in content


def write_baseline(path: Path, run_path: Path) -> Snapshot:
    """Make a run the new baseline; one with failures or mismatches cannot become it."""
    run = read_whole(run_path)
    refuse_unsound(run_path, run.samples, run.header)
    made = snapshot(run)
    figures = tuple(figure for figure in made.figures if rate(figure.parts) is not None)
    made = replace(made, figures=figures)
    content = snapshot_json(made)
    seal = seal_of({"format": FORMAT, "version": VERSION, **content})
    write_versioned(path, FORMAT, VERSION, {**content, CHECKSUM: seal})
    return made


def snapshot_json(made: Snapshot) -> dict[str, Any]:
    """A snapshot as the file has it."""
    content: dict[str, Any] = orjson.loads(orjson.dumps(made))  # tuples become lists
    for figure in content["figures"]:
        if figure["withheld"] is None:  # as nearly always
            del figure["withheld"]
    return content


def refuse_unsound(path: Path, samples: Sequence[Sample], header: Header) -> None:
    """Refuse what no other run should be measured by."""
    bad = [s for s in samples if s.verdict in ("failed", "mismatch")]
    if bad:
        first = bad[0]
        raise DataError(
            f"{path} cannot be a baseline: {counted(len(bad), 'example')} with verdict "
            f"{first.verdict}, the first {first.method} on {first.task} {first.example_id}"
        )
    for label, error in header.not_run.items():
        raise DataError(f"{path} cannot be a baseline: {label} did not run: {error}")


def _read(keys: Keys) -> Snapshot:
    model = keys.section("model")
    found = Snapshot(
        kind=keys.text("kind"),
        command=keys.texts("command"),
        model={name: model.text(name) for name in ("name", "weight_hash", "dtype")},
        settings=keys.mapping("settings"),
        machine=keys.mapping("machine"),
        data=tuple(map(_task, keys.sections("data", "task"))),
        methods=tuple(map(_method, keys.sections("methods", "method"))),
        outputs=tuple(map(_outputs, keys.sections("outputs", "outputs"))),
        figures=tuple(map(_figure, keys.sections("figures", "figure"))),
        peak_memory_bytes=keys.number("peak_memory_bytes"),
    )
    keys.optional_text(CHECKSUM, None)
    keys.refuse_the_rest()
    _refuse_twins(keys, found)
    _refuse_unequal_lengths(keys, found)
    _refuse_gaps(keys, found)
    return found


def _task(keys: Keys) -> TaskData:
    examples = keys.texts("examples")
    return TaskData(
        keys.text("task"),
        keys.number("version"),
        keys.text("sha256"),
        examples,
        keys.texts("questions") if "questions" in keys.names() else examples,
    )


def _method(keys: Keys) -> MethodFacts:
    return MethodFacts(
        keys.text("label"),
        keys.text("name"),
        keys.flag("exact"),
        keys.mapping("options"),
        keys.mapping("loaded"),
        keys.number("batch") if "batch" in keys.names() else 1,
        keys.mapping("chosen") if "chosen" in keys.names() else {},
    )


def _outputs(keys: Keys) -> Outputs:
    return Outputs(keys.text("task"), keys.text("subject"), keys.texts("hashes"))


def _figure(keys: Keys) -> Figure:
    parts = tuple(_part(keys, part) for part in keys.items("parts"))
    withheld = keys.optional_text("withheld", None)
    return Figure(keys.text("task"), keys.text("subject"), keys.text("metric"), parts, withheld)


def _part(keys: Keys, part: Any) -> Part:
    numbers = isinstance(part, list) and len(part) == 2
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int | float) for n in part):
        raise keys.error(f"a part must be two numbers, not {kind(part)}")
    for number in part:
        if not abs(number) <= LARGEST:  # true of nan as well
            raise keys.error(f"a part must be two finite numbers, not {kind(number)}")
    return part[0], part[1]


def _refuse_twins(keys: Keys, found: Snapshot) -> None:
    """Refuse two entries for one thing, of which only one would be checked, or one twice."""
    entries: dict[str, Iterable[Sequence[str]]] = {
        "data": [(data.task,) for data in found.data],
        "methods": [(method.label,) for method in found.methods],
        "outputs": [(outputs.task, outputs.subject) for outputs in found.outputs],
        "figures": [figure.key for figure in found.figures],
    }
    for name, of in entries.items():
        twins = [key for key, times in Counter(of).items() if times > 1]
        if twins:
            raise keys.error(f"{name} has two entries for {', '.join(twins[0])}; {AGAIN}")


def _refuse_gaps(keys: Keys, found: Snapshot) -> None:
    """Refuse outputs that no run gives: each method or target has those of every task.

    Figures may be missing, of what nothing was counted: only a run shows whether they should.
    """
    there = {(outputs.task, outputs.subject) for outputs in found.outputs}
    # Targets of a probe are named by their outputs alone.
    probed = found.kind == "probe"
    subjects = found.subjects if probed else [method.label for method in found.methods]
    for task, subject in ((data.task, subject) for data in found.data for subject in subjects):
        if (task, subject) not in there:
            raise keys.error(f"outputs of {task} with {subject} are missing; {AGAIN}")
    for subject in found.subjects:
        if subject not in subjects:
            raise keys.error(f"outputs of {subject}, which methods does not have; {AGAIN}")
    if not there:
        raise keys.error(f"outputs has no entries; {AGAIN}")


def _refuse_unequal_lengths(keys: Keys, found: Snapshot) -> None:
    """Refuse lists per example that are not as long as their task has examples."""
    lengths = {data.task: len(data.examples) for data in found.data}
    entries = [(data.task, "questions", len(data.questions)) for data in found.data]
    entries += [(o.task, o.subject, len(o.hashes)) for o in found.outputs]
    entries += [(f.task, f.subject, len(f.parts)) for f in found.figures]
    for task, subject, length in entries:
        if length != lengths.get(task):
            raise keys.error(
                f"{length} entries of {task} with {subject}, but "
                f"{counted(lengths.get(task, 0), 'example')}; {AGAIN}"
            )
