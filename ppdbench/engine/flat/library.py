"""The kernels of this machine, once they have been checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from ppdbench.engine.flat.check import Wrong, check
from ppdbench.engine.flat.native import (
    DOT_PRODUCTS,
    TILES,
    VECTORS,
    Library,
    Unavailable,
    loaded,
)

__all__ = ["Kernels", "Unavailable", "library"]

# Ways to multiply bfloat16 numbers, as headers name them.
NAMES = {TILES: "AMX", DOT_PRODUCTS: "AVX-512 products", VECTORS: "widened"}
VECTOR_NAMES = {16: "AVX-512", 8: "AVX", 4: "vectors of 4"}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that run models of a type here, in `words`.

    `path` is the way to multiply bfloat16 numbers, `dropped` says of better ones why not; None and
    nothing for float32, of which there is one way.
    """

    words: str
    path: int | None = None
    dropped: tuple[str, ...] = ()


@cache
def library(dtype: torch.dtype) -> Kernels:
    """The kernels for a type, built and checked; `Unavailable` says why there are none."""
    native = loaded()
    if dtype == torch.bfloat16:
        return _chosen(native)
    try:
        check(dtype)
    except Wrong as error:
        raise Unavailable(f"kernels fail their check: {error}") from error
    return Kernels(f"float32 {VECTOR_NAMES[native.lanes]}")


def _chosen(native: Library) -> Kernels:
    """The best way to multiply bfloat16 numbers that passes its check."""
    dropped: list[str] = []
    for path in native.paths:
        native.use(path)
        try:
            check(torch.bfloat16)
        except Wrong as error:
            dropped.append(f"{NAMES[path]}: {error}")
        else:
            left = "".join(f", without {why}" for why in dropped)
            return Kernels(f"bfloat16 {NAMES[path]}{left}", path, tuple(dropped))
    raise Unavailable(f"kernels fail their check: {'; '.join(dropped)}")
