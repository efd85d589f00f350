"""Theory from probe runs against hand-worked numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppdbench import theory
from ppdbench.errors import ConfigError, DataError
from ppdbench.report import theory_tables
from ppdbench.report.theory_tables import (
    MeasuredRows,
    RowFilter,
    TheoryRow,
    run_sheets,
    telling_rows,
)
from ppdbench.runs.store import read_run
from tests.report import probe_sample, write_run

BOTH = [probe_sample("a"), probe_sample("b")]


def measure(folder: Path, samples: list[dict[str, Any]] = BOTH, **wanted: Any) -> MeasuredRows:
    header = wanted.pop("header", {})
    return theory_tables.measured_rows(
        read_run(write_run(folder, samples, **header)), RowFilter(**wanted)
    )


def only(measured: MeasuredRows, **fields: Any) -> TheoryRow:
    (row,) = [r for r in measured.rows if all(getattr(r, k) == v for k, v in fields.items())]
    return row


def test_half_layer_is_what_is_worked_out_by_hand(tmp_path: Path) -> None:
    row = only(measure(tmp_path), layer=2, k=1)
    assert (row.examples, row.tokens) == (2, 7)
    assert row.match_rate == pytest.approx(5 / 7)
    # a: two runs, 2 * 4 + 2 * 2 layer-times; b: one run, its last miss starts none.
    assert row.recorded_latency == pytest.approx((12 + 8) / 2)
    assert row.expected_latency == pytest.approx(14 - 25 / 7)
    assert row.speedup == pytest.approx(14 / (14 - 25 / 7))


def test_limits_of_long_outputs_are_those_of_theory(tmp_path: Path) -> None:
    row = only(measure(tmp_path), layer=3, k=4)
    assert row.match_rate == 1
    assert row.latency_per_token == theory.latency_per_token(4, 3, 1.0)
    assert row.compute_per_time_unit == theory.compute_per_time_unit(4, 3, 4, 1.0)
    assert row.compute_per_token == theory.compute_per_token(4, 3, 4, 1.0)


def test_always_matching_makes_recorded_and_expected_equal(tmp_path: Path) -> None:
    row = only(measure(tmp_path), layer=2, k=4)
    assert row.recorded_latency == row.expected_latency


def test_layers_below_half_keep_their_match_rate_and_nothing_else(tmp_path: Path) -> None:
    measured = measure(tmp_path)
    row = only(measured, layer=1, k=1)
    assert row.match_rate == pytest.approx(1 / 7)
    assert row.expected_latency is row.recorded_latency is row.speedup is None
    assert any("less than half of 4 layers" in note for note in measured.notes)


def test_the_last_layer_is_no_exit(tmp_path: Path) -> None:
    assert {row.layer for row in measure(tmp_path).rows} == {1, 2, 3}


def test_odd_numbers_of_layers_exit_after_the_larger_half(tmp_path: Path) -> None:
    model = {"name": "tiny", "n_layers": 5}
    rows = measure(tmp_path, header={"model": model}).rows
    assert {row.layer for row in rows if row.latency_per_token is not None} == {3, 4}


def test_trained_heads_are_rows_of_their_own(tmp_path: Path) -> None:
    trained = {"2": [0, 0, 0, 0]}
    measured = measure(tmp_path, [probe_sample("a", head_ranks=trained)], ks=(1,), exit_after=2)
    assert [(r.head, r.match_rate) for r in measured.rows] == [("N", 0.75), ("Y", 1.0)]


def test_tasks_and_targets_are_not_pooled(tmp_path: Path) -> None:
    samples = [
        probe_sample("a"),
        probe_sample("b", task="xsum"),
        probe_sample("b", target="top-k"),
    ]
    measured = measure(tmp_path, samples, ks=(1,), exit_after=2)
    assert [(r.task, r.target, r.tokens) for r in measured.rows] == [
        ("squad", "greedy", 4),
        ("xsum", "greedy", 3),
        ("squad", "top-k", 3),
    ]
    assert len(measure(tmp_path, samples, ks=(1,), exit_after=2, target="top-k").rows) == 1


def test_failed_examples_are_counted(tmp_path: Path) -> None:
    failed = {"example_id": "c", "task": "squad", "method": "probe", "verdict": "error"}
    measured = measure(tmp_path, [*BOTH, failed])
    assert measured.failed == 1
    assert "1 failed example is left out." in measured.notes
    more = measure(tmp_path / "more", [*BOTH, failed, {**failed, "example_id": "d"}])
    assert "2 failed examples are left out." in more.notes


def test_ks_come_from_the_run_where_none_are_asked_for(tmp_path: Path) -> None:
    assert {row.k for row in measure(tmp_path).rows} == {1, 4}
    assert {row.k for row in measure(tmp_path, header={"config": {}}).rows} == {1, 3, 5}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"task": "nope"}, "--task nope: this run has squad"),
        ({"target": "top-p"}, "--target top-p: this run has greedy"),
        ({"head": "Y"}, "--head Y: this run has N"),
        ({"exit_after": 1}, "less than half of 4 layers"),
        ({"exit_after": 4}, "use 2..3"),
        ({"ks": (0,)}, "use 1 or more"),
    ],
)
def test_choices_that_leave_nothing_are_refused(
    tmp_path: Path, wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        measure(tmp_path, **wanted)


def test_layers_that_were_not_probed_are_refused(tmp_path: Path) -> None:
    sample = probe_sample("a", ranks={"3": [0, 0, 0, 0]})
    with pytest.raises(ConfigError, match="--exit-after 2: this run has 3"):
        measure(tmp_path, [sample], exit_after=2)


@pytest.mark.parametrize(
    ("samples", "header", "message"),
    [
        ([], {}, "no probe samples"),
        ([probe_sample(method="greedy")], {}, "no probe samples"),
        ([], {"kind": "decode"}, "a decode run"),
        ([probe_sample("a", ranks={"4": [0, 0, 0, 0]})], {}, "no layer before the last"),
        ([BOTH[0], probe_sample("b", ranks={"3": [0, 0, 0]})], {}, "example b of squad"),
    ],
)
def test_runs_without_what_theory_needs_are_refused(
    tmp_path: Path, samples: list[dict[str, Any]], header: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        measure(tmp_path, samples, header=header)


def test_files_get_all_columns_and_terminals_a_table_per_task(tmp_path: Path) -> None:
    measured = measure(tmp_path, [probe_sample("a"), probe_sample("b", task="xsum")])
    sheet = theory_tables.run_sheet(measured)
    assert sheet.header[:5] == ("task", "layer", "k", "head", "target")
    assert len(sheet.rows) == len(measured.rows) == 12
    first, second = theory_tables.run_sheets(measured)
    assert (first.title, second.title) == (
        "squad, greedy: 1 example, 4 tokens",
        "xsum, greedy: 1 example, 3 tokens",
    )
    assert not first.notes and second.notes == measured.notes


def test_paper_points_carry_the_names_of_our_tasks() -> None:
    points = theory_tables.paper_points()
    assert len(points) == 18
    assert {point.task for point in points} == {"squad", "wmt_en_fr", "cnn_dailymail"}


def test_measured_points_are_of_the_earliest_exit_and_of_greedy(tmp_path: Path) -> None:
    samples = [probe_sample("a", target="top-p"), probe_sample("a")]
    measured = measure(tmp_path, samples)
    points, note = theory_tables.measured_points(measured)
    assert [(p.task, p.k, p.match_rate) for p in points] == [("squad", 1, 0.75), ("squad", 4, 1)]
    assert note == "measured: layer 2 of 4, greedy"
    # Half of any model lies on the paper's curve.
    assert points[0].latency_per_token == 1 - 0.75 / 2


def test_measured_points_need_a_layer_that_ppd_can_exit_after(tmp_path: Path) -> None:
    measured = measure(tmp_path, [probe_sample("a", ranks={"1": [0, 0, 0, 0]})])
    with pytest.raises(DataError, match=r"no probed layer is in 2\.\.3"):
        theory_tables.measured_points(measured)


def test_figures_put_the_paper_and_a_run_side_by_side(tmp_path: Path) -> None:
    points, _ = theory_tables.measured_points(measure(tmp_path, ks=(1,)))
    series = {"paper": theory_tables.paper_points(), "measured": points}
    rows = theory_tables.figure_json(series)
    assert [(r["task"], r["head"], r["k"], r["source"]) for r in rows[:3]] == [
        ("squad", "N", 1, "paper"),
        ("squad", "N", 1, "measured"),
        ("squad", "N", 3, "paper"),
    ]
    assert theory_tables.figure_sheet(series).header[4] == "match_rate"


def test_of_many_layers_a_terminal_gets_a_dozen_rows_the_best_among_them() -> None:
    def promised(layer: int, k: int) -> TheoryRow:
        row = TheoryRow("xsum", layer, k, "N", "greedy", 2, 8, 0.5)
        best = (layer, k) == (24, 3)
        if layer < 15:
            return row
        return replace(row, latency_per_token=0.9, speedup=1.3 if best else 1.1)

    rows = [promised(layer, k) for layer in range(1, 30) for k in (1, 3, 5)]
    shown = telling_rows(rows)
    assert len(shown) == 12
    assert sorted({row.layer for row in shown}) == [15, 22, 24, 29]
    measured = MeasuredRows("run", 30, tuple(rows), 0)
    (short,), (whole,) = run_sheets(measured), run_sheets(measured, whole=True)
    assert (len(short.rows), len(whole.rows)) == (12, 87)
    assert any("the highest speedup; all: --format csv, json" in note for note in short.notes)
    assert not any("all: --format" in note for note in whole.notes)
    assert not any(note.startswith("-: ") for note in short.notes), "no such row is shown"
    assert any(note.startswith("-: ") for note in whole.notes)
    few = [row for row in rows if row.layer > 17]
    assert telling_rows(few) == few
    early = [row for row in rows if row.layer < 15]
    assert telling_rows(early) == early, "nothing is promised that could be picked"
