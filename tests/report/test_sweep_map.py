"""Maps of sweeps in a terminal: readable at 80 columns and without colour."""

from __future__ import annotations

import pytest

from ppdbench.report import sweep_tables
from tests.filled import add_up, swept
from tests.report.made import GRID, SPEEDS, drawn, found
from tests.sweeps import cells, header, label, sample


def test_the_map_reads_without_colour() -> None:
    text = drawn(found())
    rows = [line.split() for line in text.splitlines()]
    assert ["exit_layer", "2", "4"] in rows
    assert ["1", "▼0.80x", "≈same"] in rows
    assert ["2", "▲1.30x", "★1.80x"] in rows
    assert "▼ slower" in text
    assert "\x1b" not in text


def test_colour_only_adds_to_it() -> None:
    coloured = drawn(found(), force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert "▼0.80x" in coloured


@pytest.mark.parametrize("width", [30, 80])
def test_more_columns_than_fit_go_into_further_blocks(width: int) -> None:
    lengths = tuple(range(1, 25))
    speeds = {label(exit_layer=e, draft_length=d): 1.5 + d / 10 for e in (1, 2) for d in lengths}
    text = drawn(found({"exit_layer": (1, 2), "draft_length": lengths}, speeds), width)
    assert max(map(len, text.splitlines())) <= width
    heads = [line.split()[1:] for line in text.splitlines() if line.startswith("exit_layer   ")]
    assert len(heads) > 1
    assert [int(name) for head in heads for name in head] == list(lengths)


def test_of_three_options_the_best_over_the_third_is_shown_and_said() -> None:
    axes = {**GRID, "adaptive": (False, True)}
    speeds = {
        label(exit_layer=e, draft_length=d, adaptive=a): e + 0.1 * d + a
        for e in (1, 2)
        for d in (2, 4)
        for a in (False, True)
    }
    text = drawn(found(axes, speeds))
    assert "the best over adaptive" in text
    assert "▲2.20x ▲2.40x" in text
    assert "★3.40x" in text


def test_one_option_is_drawn_as_bars_that_end_at_the_speedup() -> None:
    speeds = {label(exit_layer=1): 0.5, label(exit_layer=2): 2.0}
    short, long = drawn(found({"exit_layer": (1, 2)}, speeds)).splitlines()[1:3]
    assert (short.count("█"), long.count("█")) == (10, 39)  # and greedy's mark on the way
    assert "│" in short
    assert short.endswith("▼0.50x")
    assert long.endswith("★2.00x")


def test_cells_without_a_speedup_say_why() -> None:
    first, second, third, _ = SPEEDS
    samples = [
        *cells({third: 1.3}),
        *(sample(first, n, 1.0, "mismatch") for n in range(6)),
        *(sample(second, n, 1.0, "failed") for n in range(6)),
    ]
    result = swept(header(GRID, 6, not_run={list(SPEEDS)[3]: "no weights"}), add_up(samples))
    text = drawn(result)
    assert "✗differs" in text
    assert "!failed" in text
    assert "!not run" in text
    outputs = {row[-3]: row[-2] for row in sweep_tables.cells(result).rows}
    assert outputs["6 MISMATCH"] == outputs["NOT RUN"] == outputs["6 FAILED"] == "-"
