"""The picture of what units did, and the tables beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.bench.pipelined import pipelined
from ppdbench.errors import DataError
from ppdbench.report import pipeline_tables
from ppdbench.report.pictures.files import save_picture
from ppdbench.report.pictures.timeline import timeline
from tests.bench.test_pipelined import FACTS, five, sample
from tests.filled import add_up
from tests.report.pictures.seen import boxes, texts

EVENTS = [
    ["B", "finish", 2, 0.0, 5.0],
    ["A", "early head", 2, 0.0, 1.0],
    ["A", "ahead", 2, 1.0, 4.0],
    ["A", "adopt", 2, 5.0, 5.001],
    ["B", "finish", 3, 5.0, 10.0],
    ["A", "missed", 3, 10.0, 14.0],
    ["A", "prompt", 0, -9.0, -1.0],
    ["A", "early head", 2, -6.0, -5.0],
]


def test_a_timeline_has_a_lane_per_unit_and_a_box_per_piece_of_work(tmp_path: Path) -> None:
    picture = timeline(EVENTS, "title")
    assert [text for text in texts(picture) if text.startswith("unit")] == ["unit A", "unit B"]
    drawn = boxes(picture)
    left, ms = min(b.x for b in drawn), max(b.x + b.width for b in drawn)
    scale = (ms - left) / 14.0  # from the first box to the end of the last
    found = [(b.y > 80, (b.x - left) / scale, b.width / scale) for b in drawn]
    # What took no time and what came before the second token are not drawn.
    assert sorted((lane, *map(round, place)) for lane, *place in found) == [
        (False, 0.0, 1.0),
        (False, 1.0, 3.0),
        (False, 10.0, 4.0),
        (True, 0.0, 5.0),
        (True, 5.0, 5.0),
    ]
    save_picture(picture, tmp_path / "t.svg")


def test_a_run_without_events_is_refused() -> None:
    with pytest.raises(DataError, match="no timeline"):
        timeline([], "title")


def summary(**more: Any) -> dict[str, Any]:
    samples = [sample([1, 0, 1, 1, 0], 4.0), sample([1, 1, 1, 0, 1], 4.0)]
    figures = pipelined(FACTS, add_up(five(*samples)))
    return {
        "task": "gsm8k",
        "label": "ppd",
        "method": "ppd",
        "ms_per_token": 4.0,
        **figures,
        **more,
    }


def test_tables_put_theory_beside_measurement() -> None:
    told = summary()
    gain, units, runs = pipeline_tables.sheets([told, {"task": "gsm8k", "label": "greedy"}])
    row = dict(zip(gain.header, gain.rows[0], strict=True))
    assert (row["theorem"], row["one unit"], row["all units"]) == ("1.54x", "1.25x", "1.00x")
    assert row["efficiency"] == pytest.approx(0.25 / (1 / 0.65 - 1))
    share = dict(zip(units.header, units.rows[0], strict=True))["of units' time"]
    assert share == told["communication_share"] > 0
    assert [row[2] for row in runs.rows[:5]] == [0, 5, 0, 5, 0]


def test_one_process_says_that_its_latency_is_predicted() -> None:
    gain, *_ = pipeline_tables.sheets([summary(form="inline")])
    assert any("predicted, not measured" in note for note in gain.notes)


def test_runs_of_other_methods_have_no_such_tables() -> None:
    assert pipeline_tables.sheets([{"task": "gsm8k", "label": "greedy"}]) == []
