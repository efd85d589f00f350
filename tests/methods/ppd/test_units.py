"""A unit's part of a token: its candidates."""

from __future__ import annotations

import torch

from ppdbench.methods.ppd.units import likeliest


def test_ties_go_to_the_lowest_token() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    for k, wanted in ((1, [1]), (2, [1, 3]), (3, [1, 3, 2]), (4, [1, 3, 2, 4]), (6, None)):
        for dtype in (torch.float32, torch.bfloat16):
            assert likeliest(logits.to(dtype), k) == (wanted or [1, 3, 2, 4, 5, 0])
        assert logits.tolist() == [1.0, 3.0, 2.0, 3.0, 2.0, 2.0]
