"""The numbers that stand in a GGUF file's tensors, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import torch
from torch import Tensor

from ppdbench.engine.gguf.file import GgufFile, StoredTensor

PIECE = 1 << 20  # numbers that are read at a time
LONG = 1 << 12  # numbers of a row as it is dequantised: `gguf` takes 16 rows at once


def pieces(stream: BinaryIO, stored: StoredTensor) -> Iterator[Tensor]:
    """The rows of a tensor in float32, piece after piece."""
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize

    width = stored.shape[-1]
    n_rows = stored.size // width
    row_bytes = stored.n_bytes // n_rows
    at_once = max(1, PIECE // width)
    stream.seek(stored.start)
    for first in range(0, n_rows, at_once):
        rows = min(at_once, n_rows - first)
        long = _joined(rows, width) * row_bytes
        raw = np.fromfile(stream, np.uint8, rows * row_bytes).reshape(-1, long)
        made = dequantize(raw, GGMLQuantizationType(stored.type))
        yield torch.from_numpy(made.astype(np.float32, copy=False).reshape(rows, width))


def _joined(rows: int, width: int) -> int:
    """The rows that are dequantised as one: narrow ones take twice as long by themselves."""
    return max(n for n in range(1, max(1, LONG // width) + 1) if rows % n == 0)


def numbers(file: GgufFile, name: str) -> list[float]:
    """All numbers of a small tensor."""
    with file.path.open("rb") as stream:
        found: list[float] = torch.cat(list(pieces(stream, file.tensors[name]))).flatten().tolist()
    return found
