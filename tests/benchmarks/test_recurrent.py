"""The benchmark of drafts taken back: both ways give the same, and what does not is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import recurrent
from benchmarks.recurrent import main, model_of, taken_back
from ppdbench.engine.memory import LayerMemory
from ppdbench.errors import NumericalError


@pytest.mark.parametrize("family", recurrent.FAMILIES)
def test_states_behind_each_row_give_what_reading_again_gives(family: str) -> None:
    found = taken_back(model_of(family, 128, torch.float32), family, rows=3, kept=2, steps=2)
    assert (found.family, found.rows, found.kept) == (family, 3, 2)
    assert found.again_ms > 0 and found.by_rows_ms > 0
    assert found.again_bytes > 0 and found.by_rows_bytes > 0


def test_a_state_of_another_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LayerMemory.mark_row

    def late(self: LayerMemory) -> None:
        right(self)
        self._marks[-1] = self.length, self._marks[0][1]

    monkeypatch.setattr(LayerMemory, "mark_row", late)
    with pytest.raises(NumericalError, match="lfm2: logits of both ways are"):
        taken_back(model_of("lfm2", 128, torch.float32), "lfm2", rows=3, kept=2, steps=2)


def test_what_was_measured_is_kept_and_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent.environment, "set_threads", lambda n: None)
    kept = tmp_path / "kept.json"
    asked = ["--families", "lfm2", "--rows", "2", "--width", "128", "--steps", "1"]
    monkeypatch.setattr("sys.argv", ["recurrent", *asked, "--save", str(kept)])
    assert main() == 0
    first = capsys.readouterr().out
    assert "| family | 1 of 2 | 2 of 2 |" in first
    assert first.count("| lfm2 |") == 1 + 2  # ratios; one of two rows kept, and both
    monkeypatch.setattr("sys.argv", ["recurrent", "--families", str(kept)])
    assert main() == 0
    assert capsys.readouterr().out == first
