"""Runs of models whose config names a window hold an example that is longer than it, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ppdbench
from ppdbench.engine import adapters
from ppdbench.errors import ExactnessError
from tests.helpers import save_synthetic

WINDOW = 160


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A Llama whose config names a window that Llamas do not have."""
    folder = save_synthetic(tmp_path / "model", "layers=3,hidden=64,heads=4")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window": WINDOW}))
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A short example before a long one."""
    path = tmp_path / "rows.jsonl"
    asked = ("how many", " ".join(f"and {n}" for n in range(200)))
    path.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in asked))
    return path


def run(model: Path, rows: Path, out: Path) -> Any:
    return ppdbench.decode(
        model, "prompt-lookup", "gsm8k", data=rows, limit=2, max_new_tokens=8, threads=1, out=out
    )


def test_a_window_that_the_model_lacks_changes_nothing(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    samples = run(model, rows, tmp_path / "run").samples
    assert {sample.verdict for sample in samples} == {"identical"}
    short, long = sorted({len(sample.prompt_ids) for sample in samples})
    assert short <= WINDOW < long


def test_a_window_wrongly_applied_is_caught_though_the_first_example_is_short(
    model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "windows_of", lambda body, layers: (WINDOW,) * len(layers))
    with pytest.raises(ExactnessError, match="are not the model's"):
        run(model, rows, tmp_path / "run")
