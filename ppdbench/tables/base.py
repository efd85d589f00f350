"""What a table is made of: a paper's numbers, stored runs, and a layout that shows both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ppdbench.registry import Registry
from ppdbench.report.export import Sheet
from ppdbench.resources import folder
from ppdbench.store import StoredRun

Paper = Mapping[str, Any]
Layout = Callable[[Paper, Sequence[StoredRun]], Sheet]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One table of a paper: where its numbers are, and how ours stand beside them."""

    name: str
    needs: str  # what a user has to run first, as it is typed
    layout: Layout

    def paper(self) -> Paper:
        """The printed numbers and their setting."""
        paper, _, number = self.name.partition("/")
        path = folder("papers") / f"{paper}_table{number}.yaml"
        content: Paper = yaml.safe_load(path.read_text("utf-8"))
        return content

    def build(self, runs: Sequence[StoredRun]) -> Sheet:
        """The table from these runs."""
        return self.layout(self.paper(), runs)


TABLES: Registry[PaperTable] = Registry("table")


def table(name: str, *, needs: str) -> Callable[[Layout], Layout]:
    """Register a layout as the table called `name`."""

    def register(layout: Layout) -> Layout:
        TABLES.add(name, PaperTable(name, needs, layout))
        return layout

    return register


def settings(paper: Paper, runs: Sequence[StoredRun]) -> tuple[str, str]:
    """The paper's setting and ours, so that nobody takes one for the other."""
    theirs = paper["setting"]
    printed = [theirs.get("model"), theirs.get("hardware"), theirs.get("precision")]
    ours = dict.fromkeys(_setting(run.header) for run in runs)
    return (
        f"Paper: {'; '.join(str(part) for part in printed if part)}.",
        f"Here: {'; '.join(ours)}.",
    )


def _setting(header: Mapping[str, Any]) -> str:
    model, machine = header["model"], header["environment"]
    words = [f"{model['name']} ({model['n_layers']} layers, {model['dtype']}"]
    words += ["random weights"] if model["synthetic"] else []
    return f"{', '.join(words)}) on {machine['cpu']['model'] or model['device']}"
