"""Linear layers with weights laid out for the CPU's own matrix kernels.

One-row products at inference are bound by memory; the stock layout reaches about half of
what a packed one does, in float32 and bfloat16 alike, and a few rows cost hardly more than
one. The packed copy replaces the original, so memory does not grow (a head tied to the
embedding gets a copy of its own, because the embedding still reads plain rows). Compiled
passes read plain rows, for which a layer can be unpacked again.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ppdbench.engine.families import transposed
from ppdbench.engine.weights import is_plain, parts
from ppdbench.machine.pages import Files, Span, span

# A packed product costs about 10 µs however small it is, so small matrices stay as they are:
# the size in numbers from which packing pays.
PAYS_FROM = {torch.float32: 1 << 16, torch.bfloat16: 1 << 13}

# The row count that layouts are chosen for: steps run 1 to a few dozen rows, and the
# layout for 8 was the fastest, or level with it, at every count from 1 to 256.
ROWS_HINT = 8


class PackedLinear(nn.Module):
    """y = x W^T + b over a packed W, which only `forward` can read until it is unpacked.

    Compiled passes of few rows read plain rows, wider ones the packed copy if it is kept.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed_bytes = weight.numel() * weight.element_size()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
        self.weight = None
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if self.packed is None:
            return linear(x, self.plain, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out

    def unpack(self, shared: nn.Parameter | None = None, *, both: bool = False) -> None:
        """Hold W in plain rows, in them alone or in both forms.

        `shared` are plain rows that are there anyway.
        """
        if self.weight is None:
            if shared is None:
                shared = nn.Parameter(self.packed.to_dense(), requires_grad=False)
            self.weight = shared
        if not both:
            self.packed, self.packed_bytes = None, 0

    def rows(self) -> Tensor:
        """W in plain rows, made of the packed ones where those alone are held."""
        plain: Tensor = self.packed.to_dense() if self.weight is None else self.weight
        return plain

    @property
    def plain(self) -> Tensor:
        """W once it is unpacked."""
        assert self.weight is not None
        return self.weight


def can_pack(weight: Tensor) -> bool:
    """True if this weight may be packed here."""
    return (
        is_plain(weight)
        and weight.device.type == "cpu"
        and weight.numel() >= PAYS_FROM.get(weight.dtype, sys.maxsize)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def pack(module: nn.Module) -> nn.Module:
    """Replace the linear layers in `module`, or `module` itself, by packed ones."""
    if type(module) is nn.Linear or transposed(module):
        weight = module.get_parameter("weight").data
        bias = None if module.bias is None else module.get_parameter("bias").data
        if transposed(module):
            weight = weight.t()
        return PackedLinear(weight, bias) if can_pack(weight) else module
    for name, child in module.named_children():
        packed = pack(child)
        if packed is not child:
            setattr(module, name, packed)
    return module


def unpack(module: nn.Module, *, both: bool = False) -> None:
    """Plain weights in every packed layer in `module`, beside the packed ones or alone."""
    for layer in module.modules():
        if isinstance(layer, PackedLinear):
            layer.unpack(both=both)


def spans(module: nn.Module) -> list[Span]:
    """List the memory spans of `module`'s weights, but for those that are pages of a file."""
    packed = [m.packed for m in module.modules() if isinstance(m, PackedLinear)]
    plain = [t for p in module.parameters() for t in parts(p) if t.device.type == "cpu"]
    files = Files.behind(plain)
    held = [t for t in plain if not files.holds(t)] + [t for t in packed if t is not None]
    return [span(tensor) for tensor in held if tensor.numel()]


def packed_bytes(module: nn.Module) -> int:
    """Memory of the packed weights in `module`."""
    return sum(m.packed_bytes for m in module.modules() if isinstance(m, PackedLinear))


def copied_bytes(module: nn.Module) -> int:
    """Count the memory of weights that are there in plain rows too."""
    layers = (m for m in module.modules() if isinstance(m, PackedLinear))
    return sum(layer.packed_bytes for layer in layers if layer.weight is not None)
