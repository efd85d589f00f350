"""The levels of weights in a GGUF file, for kernels that multiply by them as they are.

How blocks hold levels, scales and shifts, the `gguf` package knows: it is asked what becomes of a
block whose scale is one, and of one whose levels are all nought, or all one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ppdbench.engine.gguf.file import StoredTensor
from ppdbench.engine.levels import GROUP, Levels

PIECE = 1 << 14  # blocks that are looked at together
ONE, NOUGHT = np.float16(1).tobytes(), bytes(2)
SHIFT = slice(2, 4)  # where headers hold it
# Scales of one and shifts of nought of the eight parts of a longer block.
ONES = bytes([1] * 4 + [0] * 4 + [1] * 4)


@dataclass(frozen=True, slots=True)
class LevelType:
    """A type of blocks: a header, perhaps the high bits of levels, then their low bits.

    `unit` is the header of a block with a scale of one and no shift; `shifted` headers hold one
    behind the scale. `lowest` is what the lowest level stands for in a unit block. `nought` and
    `one` fill high and low bits so that every level is the lowest, or stands for one.
    """

    bits: int
    unit: bytes
    shifted: bool = False
    high: int = 0
    lowest: int = 0
    nought: tuple[int, int] = (0, 0)
    one: tuple[int, int] = (0, 0x11)


LONG = ONE + NOUGHT + ONES
TYPES: Mapping[str, LevelType] = MappingProxyType(
    {
        "Q4_0": LevelType(4, ONE, lowest=-8, one=(0, 0x99)),
        "Q4_1": LevelType(4, ONE + NOUGHT, shifted=True),
        "Q5_0": LevelType(8, ONE, high=4, lowest=-16, one=(0xFF, 0x11)),
        "Q5_1": LevelType(8, ONE + NOUGHT, shifted=True, high=4),
        "Q8_0": LevelType(8, ONE, lowest=-128, nought=(0, 0x80), one=(0, 1)),
        "Q4_K": LevelType(4, LONG, shifted=True),
        "Q5_K": LevelType(8, LONG, shifted=True, high=32),
    }
)


def has_levels(stored: StoredTensor) -> bool:
    """True for a matrix of a type whose blocks are levels of groups."""
    return stored.type_name in TYPES and len(stored.shape) == 2


def read_levels(path: Path, stored: StoredTensor) -> Levels:
    """The levels of a tensor, its scales and its shifts."""
    out, inputs = stored.shape
    size, n_bytes = _block(stored)
    levels = np.empty((out * inputs // size, size), np.uint8)
    scales, shifts = (np.empty((len(levels), size // GROUP), np.float32) for _ in range(2))
    with path.open("rb") as stream:
        stream.seek(stored.start)
        for first in range(0, len(levels), PIECE):
            some = slice(first, min(first + PIECE, len(levels)))
            blocks = np.fromfile(stream, np.uint8, (some.stop - first) * n_bytes)
            parts = _parts(blocks.reshape(-1, n_bytes), stored)
            levels[some], scales[some], shifts[some] = parts
    groups = out, inputs // GROUP
    made = (levels.reshape(out, inputs), scales.reshape(groups), shifts.reshape(groups))
    return Levels(TYPES[stored.type_name].bits, *map(torch.from_numpy, made))


def _block(stored: StoredTensor) -> tuple[int, int]:
    """The numbers of a block, and its bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    size, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(stored.type)]
    return int(size), int(n_bytes)


def _parts(blocks: npt.NDArray[np.uint8], stored: StoredTensor) -> Iterator[npt.NDArray[Any]]:
    """Yield the levels of some blocks [n, bytes], then the scales and shifts of their groups."""
    from gguf import GGMLQuantizationType, dequantize

    kind, about = GGMLQuantizationType(stored.type), TYPES[stored.type_name]
    head = len(about.unit)

    def filled(fill: tuple[int, int]) -> npt.NDArray[np.uint8]:
        changed = blocks.copy()
        changed[:, head : head + about.high] = fill[0]
        changed[:, head + about.high :] = fill[1]
        return changed

    unit = blocks.copy()
    unit[:, :head] = np.frombuffer(about.unit, np.uint8)
    yield (dequantize(unit, kind) - about.lowest).astype(np.uint8)
    scaled = filled(about.one)
    if about.shifted:
        scaled[:, SHIFT] = 0
    for changed in (scaled, filled(about.nought)):
        yield dequantize(changed, kind)[:, ::GROUP]
