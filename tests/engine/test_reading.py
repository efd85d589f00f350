"""What is read of logits: the first of the likeliest tokens, and whether there is NaN."""

from __future__ import annotations

import math

import pytest
import torch

from ppdbench.engine.reading import Reading

ROWS = torch.tensor([[[0.0, 2.0, 2.0], [3.0, -1.0, 3.0], [-5.0, -4.0, -6.0]]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_of_equal_tokens_is_the_likeliest(dtype: torch.dtype) -> None:
    reading = Reading.of(ROWS.to(dtype))
    assert reading.likeliest.tolist() == [[1, 0, 1]]
    assert reading.peaks.tolist() == [[2.0, 3.0, -4.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_peak_that_is_not_finite_tells_its_row(bad: float) -> None:
    rows = ROWS.clone()
    rows[0, 1, 1] = bad
    assert torch.isfinite(Reading.of(rows).peaks).tolist() == [[True, False, True]]


def test_rows_that_only_fill_up_a_pass_are_left_out() -> None:
    reading = Reading.of(ROWS)
    assert reading.first(3) is reading
    assert [t.shape[1] for t in (reading.first(2).logits, reading.first(2).peaks)] == [2, 2]
    assert reading.first(2).likeliest.tolist() == [[1, 0]]
