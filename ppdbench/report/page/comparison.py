"""The runs that may stand side by side: same weights, data and machine, or the page says why.

Every speedup is over greedy decoding in the same run, so runs that agree in these can be
compared; a number from another model, other questions or another machine cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.report.page.runs import Run

# What has to agree for times, in words, and where run.json has it.
CONDITIONS = {
    "weights": ("model", "weight_hash"),
    "type of numbers": ("model", "dtype"),
    "device": ("model", "device"),
    "processor": ("environment", "cpu", "model"),
    "threads": ("environment", "torch", "threads"),
    "target": ("config", "target", "kind"),
    "fixed shapes": ("config", "strict"),
}


def recorded(header: Mapping[str, Any], *path: str) -> Any:
    """A value deep in run.json, or None where it was not recorded."""
    found: Any = header
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def conditions(run: Run) -> dict[str, Any]:
    """Return the conditions under which times of this run were taken."""
    found = {words: recorded(run.header, *path) for words, path in CONDITIONS.items()}
    return {**found, "processes at once": run.processes}


def questions(run: Run, task: str) -> tuple[Any, ...]:
    """Return what identifies the examples of a task, and how many tokens they got."""
    asked = recorded(run.header, "config", "max_new_tokens")
    return recorded(run.header, "data", task, "sha256"), asked


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
