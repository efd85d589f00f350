"""Attention of which a share is taken away, read wrongly: it is found before anything runs."""

from __future__ import annotations

import pytest

from benchmarks.families import tiny
from ppdbench.engine.flat import differential, layers
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.differential import share_of
from ppdbench.engine.staged import StagedModel


@pytest.mark.parametrize("bug", ["share", "halves"])
def test_a_wrong_share_and_wrong_halves_are_refused(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "share":
        monkeypatch.setattr(differential, "share_of", lambda block: 0.9 * share_of(block))
    else:
        halves = differential.halves
        monkeypatch.setattr(layers.differential, "halves", lambda heads: halves(heads)[::-1])
    model = StagedModel(tiny("diffllama"), passes=FLAT)
    assert model.flat is None
    assert "layer 0 is off by" in model.path.why
