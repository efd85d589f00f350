"""The schedule of a sweep over draft lengths and batch sizes, in vLLM's form."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ppdbench.bench.schedule import schedule
from ppdbench.bench.sweep_summary import Cell


def swept(speeds: Mapping[tuple[int, int], float | None], name: str = "max_draft") -> Any:
    """A sweep whose cells, by draft length and batch, were so much faster than greedy."""
    cells = [
        Cell("", {name: length, "batch": size}, _summary(speed))
        for (length, size), speed in speeds.items()
    ]
    lengths, sizes = (tuple(dict.fromkeys(key[i] for key in speeds)) for i in (0, 1))
    return SimpleNamespace(cells=cells, axes={name: lengths, "batch": sizes})


def _summary(speed: float | None) -> dict[str, Any] | None:
    if speed is None:
        return None
    told = {"tokens_per_s": 100 * speed, "baseline_tokens_per_s": 100.0, "failed": 0}
    return {**told, "mismatch": 0}


def test_each_range_goes_to_the_next_size_that_differs() -> None:
    found = swept(
        {(1, 1): 1.2, (4, 1): 2.0, (1, 2): 1.1, (4, 2): 1.5, (1, 4): 1.2, (4, 4): 0.8}
        | {(1, 8): 0.9, (4, 8): 0.5}
    )
    assert schedule(found) == {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 3, 4], [4, 7, 1], [8, 8, 0]],
    }


def test_what_is_wrong_or_did_not_run_is_never_best() -> None:
    found = swept({(1, 2): 1.1, (4, 2): 3.0, (8, 2): None}, "draft_length")
    found.cells[1].summary["mismatch"] = 1
    assert schedule(found)["num_speculative_tokens_per_batch_size"] == [[1, 2, 1]]


def test_other_sweeps_have_no_schedule() -> None:
    assert schedule(swept({(2, 1): 2.0}, "exit_layer")) == {}
    alone: Any = SimpleNamespace(cells=[], axes={"max_draft": (1, 2)})
    assert schedule(alone) == {}
