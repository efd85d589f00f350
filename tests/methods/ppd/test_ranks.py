"""Units that torchrun started: none is waited for longer than asked."""

from __future__ import annotations

import time

import pytest

from ppdbench.errors import UnitError
from ppdbench.methods.ppd import ranks


def test_a_rank_that_hangs_is_not_waited_for_longer_than_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "_receive", lambda source: time.sleep(60))
    began = time.monotonic()
    with pytest.raises(UnitError, match="unit B has not answered for 0 s"):
        ranks.RankUnit("unit B", 1, 0, 0.2).finish()
    assert time.monotonic() - began < 10
