"""The levels of weights in a GGUF file, for kernels that multiply by them as they are.

A block holds a header with scales and shifts, perhaps the high bits of levels, then their low bits.
Of 4 bits those of `run` levels lie side by side in bytes, and those of the `run` levels behind them
above them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from ppdbench.engine.gguf.file import StoredTensor
from ppdbench.engine.levels import GROUP, Levels

Numbers = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

PIECE = 1 << 14  # blocks that are looked at together
HALF = 2  # bytes of a scale or a shift


@dataclass(frozen=True, slots=True)
class LevelType:
    """A type of blocks: the bytes of its header and of the high bits of its levels, and its `run`.

    The lowest level stands for `lowest` scales, or `shifted` headers hold what it stands for.
    `long` blocks have eight groups, whose scales and shifts are small numbers of a scale and a
    shift.
    """

    bits: int
    head: int
    high: int = 0
    run: int = 16
    lowest: int = 0
    shifted: bool = False
    long: bool = False


TYPES: Mapping[str, LevelType] = MappingProxyType(
    {
        "Q4_0": LevelType(4, HALF, lowest=-8),
        "Q4_1": LevelType(4, 2 * HALF, shifted=True),
        "Q5_0": LevelType(8, HALF, high=4, lowest=-16),
        "Q5_1": LevelType(8, 2 * HALF, high=4, shifted=True),
        "Q8_0": LevelType(8, HALF, run=0, lowest=-128),
        "Q4_K": LevelType(4, 16, run=32, shifted=True, long=True),
        "Q5_K": LevelType(8, 16, high=32, run=32, shifted=True, long=True),
    }
)


def has_levels(stored: StoredTensor) -> bool:
    """True for a matrix of a type whose blocks are levels of groups."""
    return stored.type_name in TYPES and len(stored.shape) == 2


def read_levels(path: Path, stored: StoredTensor) -> Levels:
    """The levels of a tensor, its scales and its shifts."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    (out, inputs), about = stored.shape, TYPES[stored.type_name]
    size, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(stored.type)]
    levels = np.empty((out * inputs // size, size), np.uint8)
    scales, shifts = (np.empty((len(levels), size // GROUP), np.float32) for _ in range(2))
    with path.open("rb") as stream:
        stream.seek(stored.start)
        for first in range(0, len(levels), PIECE):
            some = slice(first, min(first + PIECE, len(levels)))
            blocks = np.fromfile(stream, np.uint8, (some.stop - first) * n_bytes)
            blocks = blocks.reshape(-1, n_bytes)
            levels[some] = _levels(blocks, about)
            scales[some], shifts[some] = _scales(blocks, about)
    groups = out, inputs // GROUP
    made = (levels.reshape(out, inputs), scales.reshape(groups), shifts.reshape(groups))
    return Levels(about.bits, *map(torch.from_numpy, made))


def _levels(blocks: Bytes, about: LevelType) -> Bytes:
    """The levels of blocks [n, bytes], counted from the lowest."""
    n, low = len(blocks), blocks[:, about.head + about.high :]
    if not about.run:  # whole bytes with a sign
        return low ^ np.uint8(0x80)
    bytes_ = low.reshape(n, -1, 1, about.run)
    levels = np.concatenate([bytes_ & 0x0F, bytes_ >> 4], axis=2).reshape(n, -1)
    if about.high:
        held = blocks[:, about.head : about.head + about.high]
        bits = np.unpackbits(held, axis=1, bitorder="little")
        if about.long:  # a byte has one of each group
            bits = bits.reshape(n, about.high, 8).transpose(0, 2, 1).reshape(n, -1)
        levels |= bits << 4
    return levels


def _scales(blocks: Bytes, about: LevelType) -> tuple[Numbers, Numbers]:
    """The scales and the shifts [n, groups] of blocks."""
    scale = _halves(blocks[:, :HALF])
    shift = _halves(blocks[:, HALF : 2 * HALF]) if about.shifted else scale * about.lowest
    if not about.long:
        return scale, shift
    from gguf.quants import Q4_K

    of_scale, of_shift = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 2 * HALF : about.head]))
    return scale * of_scale.astype(np.float32), -(shift * of_shift.astype(np.float32))


def _halves(held: Bytes) -> Numbers:
    """Numbers of two bytes each."""
    return np.ascontiguousarray(held).view(np.float16).astype(np.float32)
