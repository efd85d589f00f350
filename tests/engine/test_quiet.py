"""Other people's libraries stay silent below errors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.quiet import quiet
from tests.families import stock_model
from tests.gguf_files import write
from tests.helpers import save_synthetic


@pytest.mark.parametrize("library", ["transformers", "accelerate", "huggingface_hub"])
def test_warnings_of_libraries_stay_out_of_our_stderr(library: str) -> None:
    quiet()
    assert not logging.getLogger(f"{library}.anything").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("kind", ["a folder", "a GGUF file"])
def test_loading_writes_nothing_of_its_own(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    if kind == "a folder":
        place = save_synthetic(tmp_path / "model", "layers=2,hidden=32")
    else:
        place = write(tmp_path / "model.gguf", stock_model("llama"), "F16")
    capfd.readouterr()
    quiet()
    load(ModelSpec(name=str(place), device="cpu"))
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
