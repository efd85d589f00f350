"""The runs that may stand side by side: same weights, data and machine, or the page says why.

Every speedup is over greedy decoding in the same run, so runs that agree in these can be
compared; a number from another model, other questions or another machine cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import to_builtins

from ppdbench.bench.labels import APART
from ppdbench.report.page.runs import Run
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import AskedTarget, DecodeSettings, Header

OF_DRAWS = ("top_k", "top_p", "min_p", "temperature")

# What has to agree for times, in words, and where run.json has it.
CONDITIONS: dict[str, Callable[[Header], Any]] = {
    "weights": lambda header: header.model.weight_hash,
    "type of numbers": lambda header: header.model.dtype,
    "device": lambda header: header.model.device,
    "processor": lambda header: header.environment.cpu.model,
    "threads": lambda header: header.environment.torch.threads,
    "target": lambda header: _decoded(header, lambda config: _target(config.target)),
    "prompts": lambda header: in_words(prompting(header), whole=True),
    "fixed shapes": lambda header: _decoded(header, lambda config: config.strict),
    "prompts that join a batch": lambda header: _decoded(
        header, lambda config: config.prefill or APART
    ),
}


def _decoded(header: Header, told: Callable[[DecodeSettings], Any]) -> Any:
    """Read from what a run that decodes was told; None of others."""
    return told(header.config) if isinstance(header.config, DecodeSettings) else None


def _target(target: AskedTarget) -> str:
    """The way to pick tokens in words; what only drawing knows is left out where none are drawn."""
    rest = dict(to_builtins(target))
    kind = rest.pop("kind")
    if kind == "greedy":
        rest = {name: value for name, value in rest.items() if name not in OF_DRAWS}
    return ", ".join([kind, *(f"{name}={value}" for name, value in sorted(rest.items()))])


def conditions(run: Run) -> dict[str, Any]:
    """Return the conditions under which times of this run were taken."""
    found = {words: told(run.header) for words, told in CONDITIONS.items()}
    return {**found, "processes at once": run.processes}


def questions(run: Run, task: str) -> tuple[Any, ...]:
    """Return what identifies the examples of a task, and how many tokens they got."""
    data = run.header.data.get(task)
    return data and data.sha256, run.header.config.max_new_tokens


def differences(one: Run, other: Run) -> list[str]:
    """Say in words why two runs cannot be compared; nothing where they can."""
    theirs = conditions(other)
    found = [
        f"{words} ({value} and {theirs[words]})"
        for words, value in conditions(one).items()
        if value != theirs[words]
    ]
    shared = [task for task in one.tasks if task in other.tasks]
    if not shared:
        return [*found, "no task in common"]
    if not any(questions(one, task) == questions(other, task) for task in shared):
        found.append("other examples or lengths")
    return found


def groups(runs: Sequence[Run], task: str) -> list[list[Run]]:
    """Runs that decoded the same examples of a task under the same conditions."""
    found: list[list[Run]] = []
    for run in runs:
        if task not in run.tasks:
            continue
        like = (conditions(run), questions(run, task))
        for group in found:
            if (conditions(group[0]), questions(group[0], task)) == like:
                group.append(run)
                break
        else:
            found.append([run])
    return found
