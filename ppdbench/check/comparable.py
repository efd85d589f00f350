"""Comparability: may two runs be compared at all, and do their machines round alike?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ppdbench.check.metrics import DECODING
from ppdbench.check.snapshot import CHAT, MethodFacts, Snapshot
from ppdbench.errors import DataError
from ppdbench.runs.prompting import as_then, prompted_alike, told_apart
from ppdbench.runs.records import AskedTarget, Chat
from ppdbench.runs.validation import Unsound, convert

# Fields of targets that earlier versions did not store, at the value that was meant then.
_LATER_FIELDS: dict[str, Any] = msgspec.json.decode(
    msgspec.json.encode(
        {
            field.name: field.default
            for field in msgspec.structs.fields(AskedTarget)
            if field.default is not msgspec.NODEFAULT
        }
    )
)


def refuse_unlike(now: Snapshot, baseline: Snapshot) -> None:
    """Refuse to compare runs of other things, saying what differs and what to run."""
    differences = list(_differences(now, baseline))
    if differences:
        raise DataError(
            f"not comparable with the baseline: {'; '.join(differences)}. The baseline was made by "
            f"`{' '.join(baseline.command)}`; run that, or make a new baseline with --update"
        )


def _differences(now: Snapshot, baseline: Snapshot) -> Iterator[str]:
    if now.kind != baseline.kind and not {now.kind, baseline.kind} <= set(DECODING):
        yield _was("a run of", now.kind, baseline.kind)
        return
    for name in ("dtype", "weight_hash"):
        if now.model[name] != baseline.model[name]:
            yield _model(now, baseline, name)
            return
    for name, stored in baseline.settings.items():
        ours, theirs = _with_later_fields(now.settings.get(name)), _with_later_fields(stored)
        if name != CHAT and ours != theirs:
            yield _was(name, ours, theirs)
    asked, was_asked = _prompting(now), _prompting(baseline)
    if not prompted_alike(asked, was_asked):
        yield _was("prompts:", *told_apart(asked, was_asked))
    yield from _other_data(now, baseline)
    yield from _other_methods(now, baseline)


def _with_later_fields(setting: Any) -> Any:
    """A setting whose targets have the fields that later versions added."""
    if isinstance(setting, list):
        return [_with_later_fields(one) for one in setting]
    if isinstance(setting, dict) and "temperature" in setting:
        return {**_LATER_FIELDS, **setting}
    return setting


def _prompting(of: Snapshot) -> Chat | None:
    """The chat template of a snapshot's prompts; of earlier versions' what was so then."""
    if CHAT not in of.settings:
        return as_then(str(of.model["name"]), [data.task for data in of.data])
    stored = of.settings[CHAT]
    try:
        return None if stored is None else convert(stored, Chat)
    except Unsound as error:
        raise DataError(f"the baseline's settings.{CHAT} is damaged: {error}") from error


def _was(what: str, now: Any, baseline: Any) -> str:
    return f"{what} {now} here, {baseline} there"


def _model(now: Snapshot, baseline: Snapshot, name: str) -> str:
    ours, theirs = (f"{s.model['name']} ({s.model[name]})" for s in (now, baseline))
    return _was({"weight_hash": "model weights", "dtype": "dtype"}[name], ours, theirs)


def _other_data(now: Snapshot, baseline: Snapshot) -> Iterator[str]:
    ours, theirs = ({data.task: data for data in s.data} for s in (now, baseline))
    if set(ours) != set(theirs):
        yield _was("tasks", *(", ".join(sorted(tasks)) for tasks in (ours, theirs)))
        return
    for task, data in theirs.items():
        mine = ours[task]
        if len(mine.examples) != len(data.examples):
            yield _was(f"{task} examples", len(mine.examples), len(data.examples))
        elif (mine.sha256, mine.examples) != (data.sha256, data.examples):
            yield f"other examples or prompts of {task} (sha256 {mine.sha256}, not {data.sha256})"


def _other_methods(now: Snapshot, baseline: Snapshot) -> Iterator[str]:
    missing = [subject for subject in baseline.subjects if subject not in now.subjects]
    if missing:
        what = "targets" if now.kind == "probe" else "methods"
        yield f"{what} missing: {', '.join(missing)}"
    ours = {method.label: method for method in now.methods}
    for theirs in baseline.methods:
        mine = ours.get(theirs.label)
        if mine is None:
            continue
        for name in theirs.options:
            # An option that is new since then is judged by what it does to the figures.
            if name in mine.options and not _same_option(mine, theirs, name):
                yield _was(f"{theirs.label} {name}", mine.settled(name), theirs.settled(name))
        if mine.exact != theirs.exact:
            ours_is, theirs_is = ("exact" if m.exact else "not exact" for m in (mine, theirs))
            yield _was(f"{theirs.label} is", ours_is, theirs_is)
        if mine.loaded != theirs.loaded:
            yield f"{theirs.label} loaded other trained parts"


def _same_option(mine: MethodFacts, theirs: MethodFacts, name: str) -> bool:
    """True if both ran with one value, whoever chose it; earlier versions did not say."""
    if mine.options[name] == theirs.options[name] and name not in theirs.chosen:
        return True
    return bool(mine.settled(name) == theirs.settled(name))


def machine_differences(now: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Name the differences between two machines that rounding depends on."""
    return [
        f"{name}: {_shown(now.get(name))}, baseline {_shown(value)}"
        for name, value in baseline.items()
        if now.get(name) != value
    ]


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
