"""Bars of speedups: gains to the right, losses to the left, nothing beside a mismatch."""

from __future__ import annotations

import pytest

from ppdbench.report.pictures.drawing import (
    Box,
    Label,
)
from ppdbench.report.pictures.speedups import SpeedupBar, speedups
from tests.report.pictures.seen import boxes, texts


def ratio(value: float | None, words: str = "2.00×", claimed: bool = True) -> SpeedupBar:
    spread = None if value is None else (0.9 * value, 1.1 * value)
    low, high = spread or (None, None)
    return SpeedupBar(f"method {value}", words, value, low, high, (0.97, 1.03), claimed)


def test_gains_go_right_of_one_and_losses_left() -> None:
    drawing = speedups("s", "t", "d", [ratio(2.0), ratio(0.5)])
    (gain,), (loss,) = boxes(drawing, "accent"), boxes(drawing, "loss")
    assert loss.x + loss.width == pytest.approx(gain.x)
    assert gain.width == pytest.approx(loss.width)  # on a scale of ratios


def test_what_noise_could_have_made_is_hollow_and_claims_nothing() -> None:
    drawing = speedups("s", "t", "d", [ratio(1.01, "no difference [0.90, 1.10]", claimed=False)])
    assert not boxes(drawing, "accent")
    assert boxes(drawing, "sunken")[0].outline == "muted"
    assert "no difference [0.90, 1.10]" in texts(drawing)


def test_beside_a_mismatch_there_is_no_bar() -> None:
    drawing = speedups("s", "t", "d", [ratio(None, "2 mismatches: no speedup")])
    assert {box.paint for box in drawing.shapes if isinstance(box, Box)} == {"soft"}
    (words,) = [s for s in drawing.shapes if isinstance(s, Label) and "mismatches" in s.text]
    assert words.paint == "bad"
