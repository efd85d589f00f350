"""Tables of a decoding run: words on verdicts, models and options, and the columns that pay."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.report.decode_tables import (
    as_used,
    comparison,
    long,
    scores_sheet,
    sheets,
    verdict_text,
    where,
)
from tests.filled import add_up, overall, summarize
from tests.report.page import made


def summaries(*names: str, tasks: tuple[str, ...] = ("gsm8k",), **changes: Any) -> tuple[Any, Any]:
    """Summaries by task and overall of methods that ran on six examples each."""
    samples = [
        made.decoded(name, str(n), task=task, **changes)
        for name in names
        for task in tasks
        for n in range(6)
    ]
    header, sums = made.header("bench", methods=made.methods(*names)), add_up(samples)
    return summarize(header, sums), overall(header, sums)


def summary(**changes: Any) -> dict[str, Any]:
    (found,), _ = summaries("swift")
    return {**found, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "6 identical"),
        ({"mismatch": 1, "tie": 2, "identical": 3}, "1 MISMATCH, 2 tie, 3 identical"),
        ({"failed": 2}, "2 FAILED, 6 identical"),
        ({"exact": False, "agreement": 0.25}, "inexact, 25.0% agree"),
        ({"exact": False, "agreement": None}, "inexact"),
        ({"target": "top-p"}, "sampled (top-p)"),
        ({"target": "top-p", "exact": False, "failed": 1}, "1 FAILED, inexact, sampled (top-p)"),
    ],
)
def test_alarming_verdicts_stand_first(changes: dict[str, Any], words: str) -> None:
    assert verdict_text(summary(**changes)) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "tiny (float32)"),
        ({"synthetic": True, "strict": True}, "tiny (float32, random weights, strict)"),
        ({"gguf": "m.gguf", "adapter": "a"}, "tiny (float32, GGUF m.gguf, with an adapter)"),
        ({"processes": 2}, "tiny (float32, 2 processes)"),
        ({"processes": None}, "tiny (float32, in jobs)"),
    ],
)
def test_what_keeps_runs_apart_stands_beside_the_model(changes: dict[str, Any], words: str) -> None:
    assert where(summary(**changes)) == words


def test_options_are_told_as_they_took_effect() -> None:
    assert as_used({"a": 0, "b": "", "c": ""}, {"a": "3 of 8", "c": "own"}) == {
        "a": "3 of 8",
        "c": "own",
    }


def test_greedy_has_no_column_for_what_it_does_not_draft() -> None:
    found, _ = summaries("greedy")
    assert "accepted" not in sheets(found)[0].header
    found, _ = summaries("swift")
    speed = sheets(found)[0]
    row = dict(zip(speed.header, speed.rows[0], strict=True))
    assert row["accepted"] == pytest.approx(1 / 6)
    assert row["per step"] == pytest.approx(4 / 3)
    assert "timed" not in row


def test_examples_without_times_are_counted_apart() -> None:
    speed = sheets([summary(n_timed=4)])[0]
    row = dict(zip(speed.header, speed.rows[0], strict=True))
    assert (row["examples"], row["timed"]) == (6, 4)


def test_methods_stand_side_by_side_by_task_and_once_more_for_all() -> None:
    found, every = summaries("swift", "slow", tasks=("gsm8k", "squad"))
    titles = [sheet.title.partition(":")[0] for sheet in comparison(found, every)]
    assert titles == ["gsm8k", "squad", "all tasks"]
    assert [row[0] for row in comparison(found, every)[0].rows] == ["swift", "slow"]
    alone, every = summaries("swift")
    assert len(comparison(alone, every)) == 1


def test_memory_of_methods_is_told_beside_that_of_the_model() -> None:
    held = {"weight_bytes": 6 << 20, "cache_bytes": 2 << 20, "method_bytes": 2 << 20}
    sheet = comparison([summary()], [summary(memory=held)])[-1]
    assert sheet.rows == (("swift", 2.0, 0.25),)
    assert "The model: 6.0 MiB" in sheet.notes[0]


def test_scores_say_what_had_none() -> None:
    sheet = scores_sheet([summary(quality={"rouge1": 0.5, "em": 1.0}, unscored=2)])
    assert sheet.rows == (("gsm8k", "swift", "rouge1", 0.5), ("gsm8k", "swift", "em", 1.0))
    assert sheet.notes == (
        "gsm8k: 2 outputs had no score, as their reference holds none to compare with",
    )


def test_other_programs_get_every_single_figure_in_a_column_of_its_own() -> None:
    one = summary(parts=[1, 2], extra=7, quality={"em": 1.0}, run_lengths={1: 3})
    sheet = long([one, summary()])
    assert {"extra", "speedup", "exact", "quality_em"} <= {*sheet.header}
    assert not {"quality", "run_lengths"} & {*sheet.header}
    rows = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
    assert [row["parts"] for row in rows] == ["1+2", None]
    assert [row["quality_em"] for row in rows] == [1.0, None]
    assert [row["extra"] for row in rows] == [7, None]
    assert rows[0]["exact"] == "True"
