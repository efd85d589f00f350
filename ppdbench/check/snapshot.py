"""Snapshots: all of a run that can be compared with another, without prompts, texts or times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ppdbench.bench.labels import APART
from ppdbench.check.figures import (
    Figure,
    Outputs,
    decode_figures,
    noise_figure,
    output_hash,
    probe_figures,
)
from ppdbench.check.metrics import KINDS
from ppdbench.errors import DataError, counted
from ppdbench.runs.drawing import GREEDY
from ppdbench.runs.prompting import prompting
from ppdbench.runs.records import Decoding, DecodingHeader, Header, Sample, decoding
from ppdbench.runs.store import SCHEMA_VERSION, StoredRun

# What two runs must have been told alike to be compared, beside model, data and methods.
SETTINGS = ("max_new_tokens", "shots", "seed")
OF_DECODING = (*SETTINGS, "strict", "target", "prefill")
OF_PROBING = (*SETTINGS, "layers", "ks", "targets", "stop_at_eos")
CHAT = "chat"  # the template that prompts went through


@dataclass(frozen=True, slots=True)
class TaskData:
    """The examples of a task: which, and a hash of their prompts."""

    task: str
    version: int | str
    sha256: str
    examples: tuple[str, ...]
    questions: tuple[str, ...]
    """The question of each example, the same for all turns of a conversation."""


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """A method under the name it has in the run."""

    label: str
    name: str
    exact: bool
    options: Mapping[str, Any]
    loaded: Mapping[str, Any]
    batch: int = 1
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that it chose for options which leave the choice to it."""

    def settled(self, name: str) -> Any:
        """The value of an option, or what the method took in its place."""
        return self.chosen.get(name, self.options[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run, reduced to what a check compares."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    command: tuple[str, ...]
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    data: tuple[TaskData, ...]
    methods: tuple[MethodFacts, ...]
    outputs: tuple[Outputs, ...]
    figures: tuple[Figure, ...]
    peak_memory_bytes: int  # 0 where none was measured

    @property
    def subjects(self) -> list[str]:
        """The methods or targets that there are outputs of."""
        return list(dict.fromkeys(outputs.subject for outputs in self.outputs))

    @property
    def drawn(self) -> str | None:
        """The way in which decoding drew its outputs; None where it drew none."""
        target: Mapping[str, Any] = self.settings.get("target") or {}
        kind: str = target.get("kind", GREEDY)
        return None if kind == GREEDY else kind

    def examples(self, task: str) -> tuple[str, ...]:
        """The examples of a task, in the order of everything that is kept per example."""
        return self._of(task).examples

    def questions(self, task: str) -> tuple[str, ...]:
        """The question of each of them."""
        return self._of(task).questions

    def batch(self, label: str) -> int:
        """The size of the batches that a method decoded in."""
        return next((method.batch for method in self.methods if method.label == label), 1)

    def _of(self, task: str) -> TaskData:
        return next(data for data in self.data if data.task == task)


def snapshot(run: StoredRun, ks: Sequence[int] | None = None) -> Snapshot:
    """The snapshot of a run; `ks` counts the ranks of a probe anew, for another run's k."""
    header = run.header
    kind = header.kind
    if kind not in KINDS:
        raise DataError(
            f"{run.path} is a {kind} run, which nothing checks; use one of {', '.join(KINDS)}"
        )
    if not run.samples:
        raise DataError(f"{run.path} holds no finished samples, so there is nothing to check")
    groups = _groups(run)
    decodes = kind != "probe"
    names = OF_DECODING if decodes else OF_PROBING
    config = msgspec.to_builtins(header.config)
    settings = {name: config.get(name) for name in names}  # what is usual is left out
    if decodes:
        settings["prefill"] = settings["prefill"] or APART
    else:
        settings["ks"] = list(ks or settings["ks"])
    settings[CHAT] = msgspec.to_builtins(prompting(header))
    figures = _decoded(decoding(header), groups) if decodes else _probed(groups, settings["ks"])
    return Snapshot(
        kind=kind,
        command=tuple(header.command),
        model={name: getattr(header.model, name) for name in ("name", "weight_hash", "dtype")},
        settings=settings,
        machine=_machine(header),
        data=_data(header, groups),
        methods=_methods(decoding(header), groups) if decodes else (),
        outputs=tuple(
            Outputs(task, subject, tuple(map(output_hash, group)))
            for (task, subject), group in groups.items()
        ),
        figures=tuple(figures),
        peak_memory_bytes=max(
            (s.peak_memory_bytes or 0 for s in run.samples if isinstance(s, Decoding)), default=0
        ),
    )


Groups = Mapping[tuple[str, str], Sequence[Sample]]


def _groups(run: StoredRun) -> Groups:
    """The samples by task and by method or target, each with all examples in one order."""
    probed = run.header.kind == "probe"
    found: dict[tuple[str, str], dict[str, Sample]] = {}
    for sample in run.samples:
        subject = sample.target or "greedy" if probed else sample.method
        found.setdefault((sample.task, subject), {})[sample.example_id] = sample
    subjects = dict.fromkeys(subject for _, subject in found)
    groups = {}
    for task, data in run.header.data.items():
        every = {name for subject in subjects for name in found.get((task, subject), {})}
        for subject in subjects:
            by_id = found.get((task, subject), {})
            # Later turns of a conversation are no examples of their own, but all have the same.
            done = sum(not sample.is_later for sample in by_id.values())
            wanted = len(every) if probed else data.turns or len(every)
            if done != data.examples or len(by_id) != wanted or by_id.keys() != every:
                turns = f" and {len(by_id)} of {wanted} turns" if wanted > done else ""
                examples = counted(data.examples, "example")
                raise DataError(
                    f"{run.path} is unfinished: {done} of {examples}{turns} of "
                    f"{task} with {subject}; continue it with --resume"
                )
            # Interrupted runs finish their examples in another order.
            groups[task, subject] = [by_id[example] for example in sorted(by_id, key=_by_number)]
    return groups


def _by_number(example_id: str) -> tuple[int, str]:
    """Order examples by number, so that 9 stands before 10."""
    return (int(example_id), "") if example_id.isdecimal() else (-1, example_id)


def _decoded(header: DecodingHeader, groups: Groups) -> list[Figure]:
    figures, told = [], set()
    for (task, label), group in groups.items():
        about = header.methods[label]
        # Methods of one batch took turns, so one of them knows greedy decoding's times.
        if (task, about.batch) not in told:
            told.add((task, about.batch))
            figures.append(noise_figure(task, label, group))
        figures += decode_figures(task, label, about.name, group)
    return figures


def _probed(groups: Groups, ks: Sequence[int]) -> list[Figure]:
    return [
        figure
        for (task, target), group in groups.items()
        for figure in probe_figures(task, target, group, ks)
    ]


def _data(header: Header, groups: Groups) -> tuple[TaskData, ...]:
    of_task = {task: group for (task, _), group in groups.items()}
    return tuple(
        TaskData(
            task,
            data.version,
            data.sha256,
            examples=tuple(sample.example_id for sample in of_task[task]),
            questions=tuple(sample.question for sample in of_task[task]),
        )
        for task, data in header.data.items()
    )


def _methods(header: DecodingHeader, groups: Groups) -> tuple[MethodFacts, ...]:
    ran, chosen = {label for _, label in groups}, header.chosen or {}
    return tuple(
        MethodFacts(
            label,
            about.name,
            about.exact,
            about.options,
            about.loaded,
            about.batch,
            chosen.get(label, {}),
        )
        for label, about in header.methods.items()
        if label in ran
    )


def _machine(header: Header) -> dict[str, Any]:
    """Return the facts of the machine that rounding depends on."""
    environment = header.environment
    cpu = environment.cpu
    return {
        "cpu": cpu.model,
        "features": cpu.features,
        "device": header.model.device,
        "gpus": [device.name for device in environment.devices],
        "threads": environment.torch.threads,
        "torch": environment.packages["torch"],
        "largest_isa": environment.variables.get("ONEDNN_MAX_CPU_ISA"),
    }
