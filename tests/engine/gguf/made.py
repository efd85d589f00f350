"""Models from GGUF files, and files that are refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.engine.loading import ModelSpec, check_there, load, load_stock
from ppdbench.errors import PpdbenchError


def refused(spec: ModelSpec, words: str, *, late: bool = False) -> None:
    """Expect one line with these words, when asked whether the model is there unless `late`."""
    with pytest.raises(PpdbenchError, match=words) as caught:
        load(spec) if late else check_there(spec)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


IDS = torch.tensor([[1, 17, 42, 9, 80, 33, 5, 21, 60, 14, 2, 71]])


def loaded(path: Path, dtype: str = "float32") -> Any:
    """The stock model that comes from a file."""
    return load_stock(ModelSpec(name=str(path), dtype=dtype, device="cpu"))[0]


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """What a model makes of some tokens."""
    found: torch.Tensor = model(IDS).logits
    return found
