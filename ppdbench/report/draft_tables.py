"""Tables of drafted tokens: how often they are right, by method and distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ppdbench.probe.accuracy import Accuracy
from ppdbench.probe.summary import INTERVAL
from ppdbench.report.probe_tables import label, prompt_notes, with_interval
from ppdbench.report.sheet import Sheet
from ppdbench.runs.records import Header
from ppdbench.stats import FEW, FEW_EXAMPLES

if TYPE_CHECKING:
    from ppdbench.probe.similarity import Similarity

SHOWN = (1, 3, 5, 10)


def sheets(header: Header, rows: Sequence[Accuracy], n_examples: int) -> list[Sheet]:
    """A table for each task, and for all; `n_examples` in the smallest one."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    notes = (
        "Share of positions whose token is among the first k guesses. Distance 1: the token",
        "after the model's own next one. Every k up to 10 in --format csv and json.",
        f"±, < and >: {INTERVAL}.",
        *prompt_notes(header),
        *((FEW,) if n_examples < FEW_EXAMPLES else ()),
    )
    return [
        _sheet(
            f"{task}: draft accuracy in %, {label(header)}",
            [row for row in rows if row.task == task],
            notes if task == tasks[-1] else (),
        )
        for task in tasks
    ]


def _sheet(title: str, rows: Sequence[Accuracy], notes: tuple[str, ...]) -> Sheet:
    """A row for each method and distance."""
    cells: dict[tuple[str, int], dict[int, Accuracy]] = {}
    for row in rows:
        cells.setdefault((row.method, row.distance), {})[row.k] = row
    return Sheet(
        title,
        ("method", "distance", *(f"k={k}" for k in SHOWN)),
        tuple(
            (*names, *(with_interval(of[k].accuracy, of[k].low, of[k].high) for k in SHOWN))
            for names, of in cells.items()
        ),
        notes=notes,
    )


def similarity_sheets(header: Header, rows: Sequence[Similarity]) -> list[Sheet]:
    """A table for each task and method, a row for each layer."""
    groups: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for row in rows:
        of = groups.setdefault((row.task, row.method), {})
        of[row.layer, row.step] = row.similarity
    sheets = []
    for (task, method), of in groups.items():
        layers, steps = (sorted(set(column)) for column in zip(*of, strict=True))
        sheets.append(
            Sheet(
                f"{task}: {method}, {label(header)}",
                ("layer", *(f"step {step}" for step in steps)),
                tuple((layer, *(of.get((layer, step)) for step in steps)) for layer in layers),
                notes=(
                    "Mean cosine of pseudo and true states after so many layers.",
                    "The first of a step is where it transfers.",
                    *prompt_notes(header),
                ),
                digits={f"step {step}": 3 for step in steps},
            )
        )
    return sheets


def long(rows: Sequence[Accuracy] | Sequence[Similarity]) -> Sheet:
    """Every value with what belongs to it, one per row, for other programs."""
    return Sheet.of("draft accuracy", [asdict(row) for row in rows])
