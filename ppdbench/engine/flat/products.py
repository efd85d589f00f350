"""Linear layers over weights that are laid out once for flat passes.

Passes that are not flat (batches, whatever no program was made for) multiply by the very same
blobs, so that weights are in memory once.
"""

from __future__ import annotations

from torch import Tensor, nn

from ppdbench.engine.flat.weights import FlatLinear, pack
from ppdbench.engine.packing import PackedLinear


class FlatProduct(PackedLinear):
    """y = x W^T + b over the blob of W; the order of each sum is the same for any number of x."""

    flat: FlatLinear

    def lay_out(self, weight: Tensor) -> Tensor:
        """Make the blob and return its memory."""
        self.flat = pack(weight, None if self.bias is None else self.bias.data)
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
