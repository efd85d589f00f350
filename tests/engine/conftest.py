"""What tests of models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def inferring() -> Iterator[None]:
    """Compute without gradients, as all decoding does."""
    with torch.inference_mode():
        yield
