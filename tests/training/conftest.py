"""What tests of whole training runs start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.engine.synthetic import tokenizer
from tests.conftest import ROOT
from tests.families import stock_model

# A part of the text tells as much as the whole.
HELD_OUT = ["--held-out", "text.txt", "--held-out-tokens", "4096"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a text."""
    stock_model("llama-mha-tied", vocab_size=300).save_pretrained(tmp_path / "model")
    tokenizer(300, 96).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text((ROOT / "docs/records.md").read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
