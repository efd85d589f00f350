"""Table 1 of "Predictive Pipelined Decoding": its prompts beside those of our task files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from ppdbench.files.papers import Paper
from ppdbench.report.sheet import Sheet
from ppdbench.runs.store import StoredRun
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.matches import TASKS
from ppdbench.tasks import load_task


@table("ppd/1")
def prompts(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Each prompt, line by line, with ours rendered for the names of its variables."""
    rows = [_compared(row) for row in paper["rows"]]
    data = Sheet.of("Table 1: prompts", rows)
    shown = [_by_line(row) for row in rows]
    note = (
        "Compared byte by byte. The paper's rule is read as 21 hyphens, its apostrophes and "
        "ellipses as ASCII, as its data has them; nothing stands around a prompt."
    )
    return TableSheets(data, (*shown[:-1], replace(shown[-1], notes=(note,))))


def _compared(row: Mapping[str, Any]) -> dict[str, Any]:
    task = load_task(TASKS[row["task"]])
    ours = task.prompt.render({name: f"{{{name}}}" for name in row["variables"]})
    same = ours.encode() == row["template"].encode()
    return {
        "task": task.name,
        "shots": row["n_shot"],
        "identical": "yes" if same else "no",
        "template_paper": row["template"],
        "template": ours,
    }


def _by_line(row: Mapping[str, Any]) -> Sheet:
    lines = zip_longest(row["template_paper"].split("\n"), row["template"].split("\n"))
    verdict = "identical" if row["identical"] == "yes" else "NOT the same"
    return Sheet(
        f"Table 1: prompt of {row['task']}, {verdict}",
        ("line", "paper", "here"),
        tuple(
            (n, theirs, "same" if theirs == ours else ours)
            for n, (theirs, ours) in enumerate(lines, 1)
        ),
    )
