"""Sweeps whose speedups are known."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from ppdbench.bench.sweep_summary import Swept
from ppdbench.report.sweep_map import print_map
from tests.filled import add_up, swept
from tests.sweeps import Axes, cells, header, label

GRID = {"exit_layer": (1, 2), "draft_length": (2, 4)}
SPEEDS = {
    label(exit_layer=1, draft_length=2): 0.8,
    label(exit_layer=1, draft_length=4): 1.0,
    label(exit_layer=2, draft_length=2): 1.3,
    label(exit_layer=2, draft_length=4): 1.8,
}


def found(axes: Axes = GRID, speeds: dict[str, float] | None = None, **changes: Any) -> Swept:
    samples = cells(SPEEDS if speeds is None else speeds)
    return swept(header(axes, 6, **changes), add_up(samples))


def drawn(result: Swept, width: int = 80, **options: Any) -> str:
    out = io.StringIO()
    print_map(result, Console(file=out, width=width, **options))
    return out.getvalue()
