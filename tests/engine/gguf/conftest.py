"""GGUF files that tests spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.families import stock_model
from tests.gguf_files import write


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that loads."""
    return write(tmp_path_factory.mktemp("good") / "m.gguf", stock_model("llama"))


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copy(good, tmp_path / "m.gguf"))
