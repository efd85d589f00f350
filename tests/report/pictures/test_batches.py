"""Pictures of batches: throughput against what one user sees, and where a speedup ends."""

from __future__ import annotations

from typing import Any

from ppdbench.report.pictures.batches import batch_picture, pictures
from tests.report.pictures.seen import curves, marks, texts


def summary(batch: int, together: float, speedup: float | None, **other: Any) -> dict[str, Any]:
    """A method in a batch of this size; intervals are a tenth to either side."""
    ends = {"speedup": speedup, "speedup_low": None, "speedup_high": None}
    if speedup is not None:
        ends |= {"speedup_low": speedup - 0.1, "speedup_high": speedup + 0.1}
    return {
        "label": f"lookup (batch {batch})",
        "method": "prompt-lookup",
        "task": "gsm8k",
        "batch": batch,
        "tokens_per_s": together,
        "tokens_per_s_per_sequence": together / batch,
        **ends,
        **other,
    }


def test_points_are_what_all_gain_over_what_one_user_sees() -> None:
    throughput = pictures("run", [summary(4, 100.0, None), summary(1, 60.0, None)])[0]
    assert [mark.hint for mark in marks(throughput)] == [
        "lookup, batch 1: 60.0 tokens/s, 60.0 each",
        "lookup, batch 4: 100.0 tokens/s, 25.0 each",
    ]
    one, four = marks(throughput)
    assert one.x > four.x
    assert one.y > four.y  # downwards


def test_what_another_beats_in_both_lies_behind_the_front() -> None:
    worse = {**summary(2, 50.0, None), "label": "slow (batch 2)"}
    throughput = pictures("run", [summary(1, 60.0, None), summary(4, 100.0, None), worse])[0]
    assert [mark.hollow for mark in marks(throughput)] == [False, False, True]
    assert "Pareto front" in texts(throughput)
    alone = pictures("run", [summary(4, 100.0, None), worse])[0]
    assert "Pareto front" not in texts(alone)  # of one place no line is drawn


def test_a_speedup_is_drawn_with_its_end_and_what_was_predicted() -> None:
    told = {"crossover": "pays up to batch", "crossover_interval": "2.0 to 4.0"}
    told |= {"crossover_batch": 3.0, "crossover_predicted": "2.5"}
    shown = [
        summary(1, 60.0, 1.3, **told, predicted_speedup=1.2),
        summary(4, 100.0, 0.8, **told, predicted_speedup=0.9),
    ]
    speedup = pictures("run", shown)[1]
    assert "lookup pays up to batch 2.0 to 4.0 (predicted: 2.5)." in speedup.description
    assert {"3.0", "crossover"} <= set(texts(speedup))
    assert len(curves(speedup)) == 2  # measured, and a broken one
    without = pictures("run", [{**s, "predicted_speedup": None} for s in shown])[1]
    assert len(curves(without)) == 1
    endless = pictures("run", [{**s, "crossover_batch": None} for s in shown])[1]
    assert "crossover" not in texts(endless)


def test_nothing_is_drawn_of_nothing() -> None:
    nothing = {"tokens_per_s": None, "tokens_per_s_per_sequence": None}
    assert batch_picture("run", [{**summary(1, 1.0, None), **nothing}], "") is None
