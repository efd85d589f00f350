"""Tables of match rates show a deep model in few rows and say which."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ppdbench.probe.summary import Rate
from ppdbench.report.probe_tables import MOST_ROWS, pooled, spread_layers
from ppdbench.runs.header import Header


def header() -> Header:
    model: Any = SimpleNamespace(
        name="m", dtype="float32", synthetic=False, gguf=None, adapter=None
    )
    return cast(Header, SimpleNamespace(model=model, chat=None, config=None))


def rates(n_layers: int) -> list[Rate]:
    return [
        Rate("squad", layer, k, "N", "greedy", "total", layer / n_layers, 0.0, 1.0, 10)
        for layer in range(1, n_layers + 1)
        for k in (1, 3)
    ]


@pytest.mark.parametrize("n_layers", [1, 8, 12, 13, 30, 80])
def test_at_most_twelve_layers_are_shown_the_first_and_the_last_among_them(n_layers: int) -> None:
    layers = list(range(1, n_layers + 1))
    shown = spread_layers(layers)
    assert len(shown) == len(set(shown)) == min(n_layers, MOST_ROWS)
    assert (shown[0], shown[-1]) == (1, n_layers)
    gaps = {b - a for a, b in pairwise(shown)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_the_table_says_what_it_leaves_out() -> None:
    deep = pooled(header(), rates(30), 5)
    assert len(deep.rows) == MOST_ROWS
    said = "12 of 30 layers, evenly spread from the first to the last; all: --format csv, json."
    assert said in deep.notes
    assert not any("evenly spread" in note for note in pooled(header(), rates(12), 5).notes)
