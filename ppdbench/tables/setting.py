"""The settings of a paper and ours, told in the same order so that they compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ppdbench.files.papers import Paper
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import ProbeHeader
from ppdbench.runs.samples import count_examples, count_turns, in_turns
from ppdbench.runs.store import StoredRun

UNSAID = "not stated"
# Under these names the papers' files say the same thing.
MODEL = ("model", "models")
ASKED = {
    "hardware": ("hardware",),
    "precision": ("precision",),
    "examples": ("n_samples", "examples", "n_examples"),
    "tokens": ("generated_tokens", "max_new_tokens", "tokens"),
}


def setting_lines(paper: Paper, runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """The paper's setting and, where something was run, ours."""
    theirs = paper["setting"]
    lines = []
    if any(theirs.get(name) for name in MODEL):
        said = {what: _told(theirs, names) for what, names in ASKED.items()}
        if not runs:  # nothing to hold against what is not stated
            said = {what: value for what, value in said.items() if value != UNSAID}
        lines.append(_line("Paper", _their_model(theirs), said))
    if runs:
        lines.append(_ours(runs))
    return tuple(lines)


def _their_model(setting: Mapping[str, Any]) -> str:
    layers = setting.get("layers")
    if isinstance(layers, Mapping):
        return ", ".join(f"{name} ({n} layers)" for name, n in layers.items())
    return _told(setting, MODEL) + (f", {layers} layers" if layers else "")


def _line(who: str, model: str, said: Mapping[str, str]) -> str:
    return "; ".join([f"{who}: {model}", *(f"{what}: {it}" for what, it in said.items())]) + "."


def _told(setting: Mapping[str, Any], names: Iterable[str]) -> str:
    found = next((setting[name] for name in names if setting.get(name) is not None), UNSAID)
    return _text(found)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def _ours(runs: Sequence[StoredRun]) -> str:
    """Describe our setting for one model, since tables refuse several; the rest may differ."""
    model = runs[0].header.model
    marks = ", random weights" if model.synthetic else ""
    marks += f", with adapter {model.adapter}" if model.adapter else ""
    said = {
        "hardware": " and ".join(dict.fromkeys(map(_hardware, runs))),
        "precision": f"{model.dtype}, GGUF {model.gguf}" if model.gguf else model.dtype,
        "examples": _text(_examples(runs)),
        "tokens": _text(_tokens(runs)),
    }
    said |= _more_asked(runs)
    if (found := prompting(runs[0].header)) is not None:  # tables refuse several of these too
        said["prompts"] = in_words(found)
    return _line("Here", f"{model.name}, {model.n_layers} layers{marks}", said)


def _more_asked(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Settings that change outputs besides: worked examples before prompts, and where they end."""
    shots = sorted({run.header.config.shots for run in runs})
    said = {"shots": " or ".join(map(str, shots))} if any(shots) else {}
    probes = [run.header for run in runs if isinstance(run.header, ProbeHeader)]
    if any(header.config.stop_at_eos for header in probes):
        said["outputs"] = "end with the text"
    return said


def _hardware(run: StoredRun) -> str:
    machine, device = run.header.environment, run.header.model.device
    if device.startswith("cuda") and machine.devices:
        return machine.devices[0].name
    return machine.cpu.model or device


def _examples(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Count the examples of each task, and their turns; a range where runs differ."""
    examples: dict[str, set[int]] = {}
    turns: dict[str, set[int]] = {}
    for run in runs:
        for task in dict.fromkeys(sample.task for sample in run.samples):
            of_task = [sample for sample in run.samples if sample.task == task]
            examples.setdefault(task, set()).add(count_examples(of_task))
            turns.setdefault(task, set()).add(count_turns(of_task))
    return {task: in_turns(_range(examples[task]), _range(turns[task])) for task in examples}


def _tokens(runs: Sequence[StoredRun]) -> dict[str, str]:
    """The longest output of each task."""
    longest: dict[str, set[int]] = {}
    for run in runs:
        of_run: dict[str, int] = {}
        for sample in run.samples:
            n = len(sample.output_ids)
            of_run[sample.task] = max(n, of_run.get(sample.task, 0))
        for task, n in of_run.items():
            longest.setdefault(task, set()).add(n)
    return {task: _range(found) for task, found in longest.items()}


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
