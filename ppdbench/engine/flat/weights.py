"""Weights laid out for the kernels: plain memory that a product streams through in order."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from ppdbench.engine.flat.native import Columns, Product, loaded
from ppdbench.errors import NumericalError
from ppdbench.machine.pages import large_pages
from ppdbench.machine.threads import threads

DTYPES = (torch.float32, torch.bfloat16)
BLOCK = 32  # outputs that lie together


class FlatLinear:
    """y = x W^T + b over a packed W, for any number of rows, each row by itself.

    float32 lies as [out / 32][in][32], bfloat16 as [out / 32][in / 2][32][2], filled up with
    zeros: outputs to a multiple of 32, inputs of bfloat16 to one of 32 too.
    """

    def __init__(self, blob: Tensor, bias: Tensor | None, outputs: int, inputs: int) -> None:
        self.blob = blob
        self.bias = bias
        self.out_features, self.in_features = outputs, inputs
        self._bias = _filled(bias) if bias is not None else None

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and of rows."""
        return self.blob.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it holds."""
        return sum(t.numel() * t.element_size() for t in (self.blob, self._bias) if t is not None)

    def product(self, target: Columns | None = None, first: int = 0) -> Product:
        """The product as the kernels take it; lives no longer than this object.

        It reads what it is given from the number `first` on.
        """
        bias = None if self._bias is None else self._bias.data_ptr()
        where = target or Columns(1, 0)
        sizes = self.in_features, self.out_features
        return Product(self.blob.data_ptr(), bias, *sizes, where, first)

    def biased(self, bias: Tensor) -> FlatLinear:
        """The same with a bias, where it has none: x W^T + b over one blob."""
        return FlatLinear(self.blob, widened(bias), self.out_features, self.in_features)

    def outputs(self, first: int, count: int) -> FlatLinear | None:
        """Some outputs over the same memory, where they are whole blocks and have no bias."""
        if self.bias is not None or not in_blocks(first, count):
            return None
        deep = _deep(self.in_features, self.dtype)
        return FlatLinear(
            self.blob[first * deep : (first + count) * deep], None, count, self.in_features
        )

    def lies_in(self, other: FlatLinear) -> bool:
        """True if its weights are in the memory of another."""
        mine, others = (each.blob.untyped_storage() for each in (self, other))
        return mine.data_ptr() == others.data_ptr()

    def unpacked(self) -> Tensor:
        """W in plain rows [out, in], a copy."""
        rows = torch.empty(self.out_features, self.in_features, dtype=self.dtype)
        loaded().move(self.blob, rows, back=True)
        return rows

    def holds(self, weight: Tensor, bias: Tensor | None) -> bool:
        """True if this is W and b, bit by bit."""
        ours, given = self.bias, bias
        if (ours is None) != (given is None):
            return False
        if ours is not None and given is not None and not torch.equal(ours, given.float()):
            return False
        return self._is_made_of(weight.detach())

    def _is_made_of(self, weight: Tensor) -> bool:
        return loaded().holds(self.blob, weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], for any number of rows."""
        rows = x.reshape(-1, self.in_features).contiguous()
        if rows.dtype != self.dtype:
            raise TypeError(f"rows of {rows.dtype} against weights of {self.dtype}")
        out = torch.empty(len(rows), self.out_features, dtype=self.dtype)
        narrow = self.dtype == torch.bfloat16
        places = rows.data_ptr(), out.data_ptr()
        if not loaded().linear(byref(self.product()), narrow, *places, len(rows), threads.count):
            raise MemoryError(f"no memory for {len(rows)} rows of {self.out_features} numbers")
        return out.reshape(*x.shape[:-1], self.out_features)


def in_blocks(first: int, count: int) -> bool:
    """True if so many outputs from one on are whole blocks."""
    return first % BLOCK == 0 and count % BLOCK == 0


def blob_bytes(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """The bytes that a weight takes once it is laid out."""
    return -(-outputs // BLOCK) * BLOCK * _deep(inputs, dtype) * dtype.itemsize


def _deep(inputs: int, dtype: torch.dtype) -> int:
    """The numbers of an output that lie in a blob, with those that fill it up."""
    return -(-inputs // BLOCK) * BLOCK if dtype == torch.bfloat16 else inputs


def pack(weight: Tensor, bias: Tensor | None = None) -> FlatLinear:
    """A weight [out, in] for the kernels, in whatever order of memory it comes."""
    if weight.dtype not in DTYPES:
        raise TypeError(f"weights of {weight.dtype}; use float32 or bfloat16")
    outputs, inputs = weight.shape
    n = loaded().blob_numbers(outputs, inputs, narrow=weight.dtype == torch.bfloat16)
    blob = large_pages.zeros(n, weight.dtype)
    loaded().move(blob, weight.detach())
    return FlatLinear(blob, widened(bias), outputs, inputs)


def pack_in_place(weight: Tensor, bias: Tensor | None = None) -> FlatLinear | None:
    """The same in the weight's own memory, if it is alone on large pages and fills its blob.

    Its rows are gone then. It is held against them block by block on the way.
    """
    outputs, inputs = weight.shape
    fills = in_blocks(0, outputs) and _deep(inputs, weight.dtype) == inputs
    if not (fills and weight.is_contiguous() and large_pages.holds_alone(weight)):
        return None
    made = loaded().move_in_place(weight)
    if made is None:
        return None
    if not made:
        raise NumericalError(
            f"a weight of {outputs} x {inputs} came out changed when it was laid out for the "
            "kernels: is this machine's memory sound?"
        )
    return FlatLinear(weight.detach().view(-1), widened(bias), outputs, inputs)


def widened(bias: Tensor | None) -> Tensor | None:
    """A bias, if there is one, in the type that kernels add."""
    return None if bias is None else bias.detach().float()


def _filled(bias: Tensor) -> Tensor:
    """The same with zeros for the outputs that fill up the last block."""
    return torch.nn.functional.pad(bias, (0, -len(bias) % BLOCK)).contiguous()
