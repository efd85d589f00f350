"""Other people's libraries stay silent below errors."""

from __future__ import annotations

import logging

import pytest

from ppdbench.engine.quiet import quiet


@pytest.mark.parametrize("library", ["transformers", "accelerate", "huggingface_hub"])
def test_warnings_of_libraries_stay_out_of_our_stderr(library: str) -> None:
    quiet()
    assert not logging.getLogger(f"{library}.anything").isEnabledFor(logging.WARNING)
