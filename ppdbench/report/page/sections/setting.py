"""The section on the setting: runs and machines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ppdbench.report.decode_tables import as_used
from ppdbench.report.html import Child, Node, h
from ppdbench.report.page.parts import Section, definition_list, folded
from ppdbench.report.page.runs import Run
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import Header
from ppdbench.runs.samples import count_examples, count_turns, in_turns


def section(runs: Sequence[Run]) -> Section:
    """A card for each run."""
    return Section(
        "setting", "What was run, and on what", (h("div", map(_card, runs), class_="cards"),)
    )


def _card(run: Run) -> Node:
    header = run.header
    command = shlex.join(header.command)
    return h(
        "article",
        h("h3", run.name, h("span", run.kind, class_="kind")),
        h("pre", h("code", command), tabindex=0, aria_label="command line") if command else None,
        definition_list([(name, value) for name, value in told_of(run) if value]),
        *(h("p", note, class_="note") for note in _notes(run)),
        _methods(header),
        folded(
            "Environment and configuration",
            definition_list(_flat(header, ("environment", "config"))),
        ),
        class_="card",
    )


def _notes(run: Run) -> Iterator[str]:
    if run.stored.torn:
        yield "The last line of its samples is incomplete and left out."
    if run.stored.unsealed:
        yield "Its samples have no checksums, as earlier versions wrote none."


def told_of(run: Run) -> list[tuple[str, Child]]:
    """Describe a run under the names that cards have; what is not known is None."""
    header = run.header
    return [
        ("Model", _model(header)),
        ("Weights", _code(header.model.weight_hash)),
        ("Numbers", _numbers(header)),
        ("Ran on", _machine(header)),
        ("Processes", None if run.processes == "1" else run.processes),
        ("Tasks", _tasks(run)),
        ("Prompts", _prompts(header)),
        ("Versions", _versions(header)),
        ("Commit", _commit(header)),
        ("Started", _moment(header.started)),
        ("Folder", _code(str(run.stored.path))),
    ]


def _model(header: Header) -> str:
    model = header.model
    words = [model.name]
    words += [f"revision {model.revision}"] if model.revision else []
    words += [f"adapter {model.adapter} ({model.adapter_hash})"] if model.adapter else []
    words += [f"the text part of {model.part_of}"] if model.part_of else []
    words += [model.family, f"{model.n_layers} layers"]
    words += ["random weights"] if model.synthetic else []
    return ", ".join(words)


def _numbers(header: Header) -> str:
    model = header.model
    if model.gguf is None:
        return model.dtype
    parts = (f"{n:,} in {name}" for name, n in (model.gguf_weights or {}).items())
    return f"{model.dtype}, from GGUF {model.gguf} ({', '.join(parts)} weights)"


def _machine(header: Header) -> str:
    environment = header.environment
    threads, cores = environment.torch.threads, environment.cpu.usable_cores
    words = [header.model.device, environment.cpu.model]
    words += [f"{threads} of {cores} cores"] if threads and cores else []
    words += [device.name for device in environment.devices]
    return ", ".join(word for word in words if word)


def _tasks(run: Run) -> str:
    length = run.header.config.max_new_tokens
    sizes = []
    for task in run.tasks:
        of_task = [sample for sample in run.samples if sample.task == task]
        examples = count_examples(of_task)
        sizes.append(f"{task} ({in_turns(examples, count_turns(of_task), 'example')})")
    words = ", ".join(sizes)
    return f"{words}; up to {length} new tokens" if length else words


def _prompts(header: Header) -> str | None:
    """Name the chat template and all it was given; plain prompts need no word."""
    found = prompting(header)
    return None if found is None else in_words(found, whole=True)


def _versions(header: Header) -> str:
    packages = {n: v for n, v in header.environment.packages.items() if n != "ppdbench"}
    found = {"ppdbench": header.ppdbench, "Python": header.environment.python, **packages}
    return ", ".join(f"{n} {v}" for n, v in found.items() if v)


def _commit(header: Header) -> Child:
    git = header.environment.git
    if git is None:
        return None
    return [_code(git.commit[:12]), ", with changes" if git.modified else ""]


def _moment(text: str) -> str:
    return text.replace("T", " ").replace("+00:00", " UTC")


def _code(text: Any) -> Node | None:
    return h("code", str(text)) if text else None


def _methods(header: Header) -> Node | None:
    used = header.used or {}
    told = {label: as_used(m.options, used.get(label, {})) for label, m in header.methods.items()}
    options = [
        (label, ", ".join(f"{name}={value}" for name, value in of.items()) or "none")
        for label, of in told.items()
    ]
    return folded("Options of the methods", definition_list(options)) if options else None


def _flat(header: Header, names: Sequence[str]) -> list[tuple[str, Child]]:
    """Nested settings as dotted names, each as run.json has it."""
    found: list[tuple[str, Child]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(f"{prefix}.{name}", inner)
        else:
            is_text = isinstance(value, str)
            found.append((prefix, _code(value if is_text else json.dumps(value))))

    for name in names:
        walk(name, msgspec.to_builtins(getattr(header, name)))
    return found
