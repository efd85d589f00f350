"""The section on the setting: runs and machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ppdbench.report.decode_tables import as_used
from ppdbench.report.html import Child, Node, h
from ppdbench.report.page.comparison import recorded
from ppdbench.report.page.parts import Section, facts, folded
from ppdbench.report.page.runs import Run
from ppdbench.runs.samples import count_examples, count_turns, in_turns


def section(runs: Sequence[Run]) -> Section:
    """A card for each run."""
    return Section(
        "setting", "What was run, and on what", (h("div", map(_card, runs), class_="cards"),)
    )


def _card(run: Run) -> Node:
    header = run.header
    command = shlex.join(header.get("command") or ())
    return h(
        "article",
        h("h3", run.name, h("span", run.kind, class_="kind")),
        h("pre", h("code", command), tabindex=0, aria_label="command line") if command else None,
        facts([(name, value) for name, value in _facts(run) if value]),
        *(h("p", note, class_="note") for note in _notes(run)),
        _methods(header.get("methods") or {}, header.get("used") or {}),
        folded("Environment and configuration", facts(_flat(header, ("environment", "config")))),
        class_="card",
    )


def _notes(run: Run) -> Iterator[str]:
    if run.stored.torn:
        yield "The last line of its samples is incomplete and left out."
    if run.stored.unsealed:
        yield "Its samples have no checksums, as earlier versions wrote none."


def _facts(run: Run) -> list[tuple[str, Child]]:
    header = run.header
    return [
        ("Model", _model(header)),
        ("Weights", _code(recorded(header, "model", "weight_hash"))),
        ("Numbers", recorded(header, "model", "dtype")),
        ("Ran on", _machine(header)),
        ("Processes", None if run.processes == "1" else run.processes),
        ("Tasks", _tasks(run)),
        ("Versions", _versions(header)),
        ("Commit", _commit(header)),
        ("Started", _moment(header.get("started"))),
        ("Folder", _code(str(run.stored.path))),
    ]


def _model(header: Mapping[str, Any]) -> str:
    model = header["model"]
    words = [model["name"]]
    words += [f"revision {model['revision']}"] if model.get("revision") else []
    words += [str(model["family"])] if model.get("family") else []
    words += [f"{model['n_layers']} layers"] if model.get("n_layers") else []
    words += ["random weights"] if model.get("synthetic") else []
    return ", ".join(words)


def _machine(header: Mapping[str, Any]) -> str:
    threads = recorded(header, "environment", "torch", "threads")
    cores = recorded(header, "environment", "cpu", "usable_cores")
    words = [recorded(header, "model", "device"), recorded(header, "environment", "cpu", "model")]
    words += [f"{threads} of {cores} cores"] if threads and cores else []
    words += [_name(device) for device in recorded(header, "environment", "devices") or ()]
    return ", ".join(str(word) for word in words if word)


def _name(device: Any) -> str:
    return str(device.get("name", device)) if isinstance(device, Mapping) else str(device)


def _tasks(run: Run) -> str:
    length = recorded(run.header, "config", "max_new_tokens")
    sizes = []
    for task in run.tasks:
        of_task = [sample for sample in run.samples if sample["task"] == task]
        n = in_turns(count_examples(of_task), count_turns(of_task), " examples")
        sizes.append(f"{task} ({n})")
    words = ", ".join(sizes)
    return f"{words}; up to {length} new tokens" if length else words


def _versions(header: Mapping[str, Any]) -> str:
    packages = recorded(header, "environment", "packages") or {}
    python = recorded(header, "environment", "python")
    found = {"Python": python, **{n: v for n, v in packages.items() if n != "ppdbench"}}
    own = header.get("ppdbench")
    return ", ".join(f"{n} {v}" for n, v in {"ppdbench": own, **found}.items() if v)


def _commit(header: Mapping[str, Any]) -> Child:
    git = recorded(header, "environment", "git") or {}
    if not git.get("commit"):
        return None
    return [_code(str(git["commit"])[:12]), ", with changes" if git.get("modified") else ""]


def _moment(text: str | None) -> str | None:
    return text.replace("T", " ").replace("+00:00", " UTC") if text else None


def _code(text: Any) -> Node | None:
    return h("code", str(text)) if text else None


def _methods(methods: Mapping[str, Any], used: Mapping[str, Any]) -> Node | None:
    told = {
        label: as_used(about.get("options") or {}, used.get(label, {}))
        for label, about in methods.items()
    }
    options = [
        (label, ", ".join(f"{name}={value}" for name, value in of.items()) or "none")
        for label, of in told.items()
    ]
    return folded("Options of the methods", facts(options)) if options else None


def _flat(header: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, Child]]:
    """Nested settings as dotted names."""
    found: list[tuple[str, Child]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(f"{prefix}.{name}", inner)
        else:
            found.append((prefix, _code(value if isinstance(value, str) else repr(value))))

    for name in names:
        walk(name, header.get(name) or {})
    return found
