"""Linear layers over weights that are laid out once for flat passes.

Passes that are not flat (batches, whatever no program was made for) multiply by the very same
blobs, so that weights are in memory once.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ppdbench.engine.flat.stored import store
from ppdbench.engine.flat.understood import NotUnderstoodError
from ppdbench.engine.flat.weights import FlatLinear, pack, pack_in_place
from ppdbench.engine.levels import Levels
from ppdbench.engine.packing import PackedLinear


class FlatProduct(PackedLinear):
    """y = x W^T + b over the blob of W; the order of each sum is the same for any number of x."""

    flat: FlatLinear

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        levels: Levels | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        """Lay out a weight, or where they are given the levels that it was made of.

        `in_place`: where it lies, if that can be; its rows are gone then.
        """
        self._levels, self.in_place = levels, in_place and levels is None
        super().__init__(weight, bias)
        del self._levels
        if levels is not None:
            self.packed_bytes = self.packed.numel() * self.packed.element_size()

    def lay_out(self, weight: Tensor) -> Tensor:
        """Make the blob and return its memory."""
        bias = None if self.bias is None else self.bias.data
        made = pack_in_place(weight, bias) if self.in_place else None
        self.in_place = made is not None
        if self._levels is None:
            self.flat = made or pack(weight, bias)
        else:
            self.flat = store(self._levels, bias, weight.dtype)
        return self.flat.blob

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return self.flat(x)

    def rows(self) -> Tensor:
        """Copy the blob into plain rows."""
        return self.flat.unpacked()


def plain(module: nn.Module) -> nn.Module:
    """Return the linear layer that a flat one was made of, anything else as it is."""
    if not isinstance(module, FlatProduct):
        return module
    made = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
    made.weight = nn.Parameter(module.rows(), requires_grad=False)
    made.register_parameter("bias", module.bias)
    return made


def part_of(block: nn.Module, *names: str) -> Any:
    """The first of these parts that a block has."""
    for name in names:
        if (part := getattr(block, name, None)) is not None:
            return part
    raise NotUnderstoodError(f"{type(block).__name__} has none of {', '.join(names)}")


def product_of(block: nn.Module, *names: str) -> FlatLinear:
    """The product that a block has under one of these names."""
    name = next((name for name in names if hasattr(block, name)), names[0])
    return flat_of(part_of(block, name), name)


def flat_of(module: nn.Module, name: str) -> FlatLinear:
    """The product that a module makes, if its weights are laid out for it."""
    if not isinstance(module, FlatProduct):
        raise NotUnderstoodError(f"{name} is {type(module).__name__}, no plain product")
    return module.flat
