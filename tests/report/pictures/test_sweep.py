"""Pictures of sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.report.pictures.drawing import PointMark
from ppdbench.report.pictures.files import save_picture
from ppdbench.report.pictures.sweep import acceptance_curves, sweep_picture
from tests.filled import add_up, swept
from tests.report.made import found
from tests.report.pictures.seen import boxes, texts
from tests.sweeps import STEPS, cells, header, label, sample


def test_the_heat_map_has_a_cell_for_each_setting_and_says_which_is_best() -> None:
    shown = texts(sweep_picture(found()))
    assert [text for text in shown if text[0] in "▼≈▲★"][:4] == [
        *("▼0.80x", "≈same", "▲1.30x", "★1.80x"),
    ]
    words = " ".join(shown)
    for key in ("★ best", "▼ slower", "≈ same: no difference beyond noise"):
        assert key in words


def test_one_option_is_drawn_with_intervals_and_without_mismatches() -> None:
    axes, (one, two) = {"exit_layer": (1, 2)}, (label(exit_layer=1), label(exit_layer=2))
    wrong = [sample(two, n, 3.0, "mismatch") for n in range(6)]
    picture = sweep_picture(swept(header(axes, 6), add_up(cells({one: 1.5}) + wrong)))
    shown = texts(picture)
    assert "1.50× [1.49, 1.51]" in shown
    assert "6 mismatches: no speedup" in shown
    assert [box.hint for box in boxes(picture, "accent")] == ["exit_layer=1: 1.50× [1.49, 1.51]"]
    assert not boxes(picture, "loss")


def test_acceptance_is_drawn_over_the_temperature_a_line_for_each_setting() -> None:
    axes = {"temperature": (1.0, 0.2), "exit_layer": (2, 4)}
    head = header(axes, 6)
    for about in head["methods"].values():
        about["temperature"] = about["options"].pop("temperature")
    kept = {(0.2, 2): 3, (0.2, 4): 4, (1.0, 2): 1, (1.0, 4): 2}  # of 4 that were proposed
    samples = [
        {**one, "proposed": [4] * STEPS, "accepted": [n] * STEPS}
        for (temperature, layer), n in kept.items()
        for one in cells({label(temperature=temperature, exit_layer=layer): 1.2})
    ]
    found = swept(head, add_up(samples))
    assert found.axes == axes
    drawn = acceptance_curves("a", found)
    marks = [shape for shape in drawn.shapes if isinstance(shape, PointMark) and shape.hint]
    assert [mark.hint for mark in marks] == [
        *("exit_layer=2 at 0.2: 75.0%", "exit_layer=2 at 1: 25.0%"),
        *("exit_layer=4 at 0.2: 100.0%", "exit_layer=4 at 1: 50.0%"),
    ]
    assert marks[0].x < marks[1].x
    shown = texts(sweep_picture(found))
    assert "Drafted tokens that were kept, by temperature" in shown
    assert {"exit_layer=2", "exit_layer=4"} <= set(shown)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_the_same_bytes_each_time(tmp_path: Path, suffix: str) -> None:
    for name in "ab":
        save_picture(sweep_picture(found()), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
