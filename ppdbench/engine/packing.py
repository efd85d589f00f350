"""Linear layers with weights laid out for the CPU's own matrix kernels.

One-row products at inference are bound by memory; the stock layout reaches about half of
what a packed one does, in float32 and bfloat16 alike, and a few rows cost hardly more than
one. The packed copy replaces the original, so memory does not grow (a head tied to the
embedding gets a copy of its own, because the embedding still reads plain rows; flat passes look
words up in the head where they can).
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ppdbench.engine.attention import BFLOAT16_PRODUCTS
from ppdbench.engine.families import is_linear, transposed
from ppdbench.engine.weights import is_plain, parts
from ppdbench.machine.pages import Files, Span, span

# A packed product costs about 10 µs however small it is, so small matrices stay as they are:
# the size in numbers from which packing pays.
PAYS_FROM = {torch.float32: 1 << 16, torch.bfloat16: 1 << 13}

# Returns what stands in the place of a module, or the module itself.
Exchange = Callable[[nn.Module], nn.Module]

# The row count that layouts are chosen for: steps run 1 to a few dozen rows, and the
# layout for 8 was the fastest, or level with it, at every count from 1 to 256.
ROWS_HINT = 8


class PackedLinear(nn.Module):
    """y = x W^T + b over a packed W, which only `forward` can read."""

    bias: nn.Parameter | None
    in_place = False
    """True if its weights lie where those that it was made of did."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed_bytes = weight.numel() * weight.element_size()
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.packed = self.lay_out(weight)

    def lay_out(self, weight: Tensor) -> Tensor:
        """Copy W into the layout that `forward` reads."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
        return packed

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features] over the packed W."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out

    def rows(self) -> Tensor:
        """Copy the packed W into plain rows."""
        return self.packed.to_dense()


def is_lookup(embedding: nn.Module) -> TypeGuard[nn.Embedding]:
    """True if what a module gives for a token is a row of its weight, as it is."""
    return (
        type(embedding) is nn.Embedding
        and embedding.max_norm is None
        and not embedding._forward_hooks
        and not embedding._forward_pre_hooks
    )


class SharedWords(nn.Module):
    """Words that are looked up in the packed weight of the head that has the same."""

    held: Any
    """The packed weight."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        # Says what type they are of, and holds none.
        self.nothing = nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)

    def rows(self) -> Tensor:
        """Copy them into plain rows [word, width]."""
        raise NotImplementedError


def can_pack(weight: Tensor) -> bool:
    """True if this weight may be packed here."""
    return (
        is_plain(weight)
        and weight.device.type == "cpu"
        and weight.numel() >= PAYS_FROM.get(weight.dtype, sys.maxsize)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (BFLOAT16_PRODUCTS or weight.dtype != torch.bfloat16)
    )


def weights_of(product: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """The weights of a linear layer in plain rows and its bias; None of anything else."""
    if not _is_product(product):
        return None
    own: Any = product
    bias = None if own.bias is None else own.bias.data
    return own.weight.data.t() if transposed(product) else own.weight.data, bias


def taken(module: nn.Module) -> torch.dtype | None:
    """The type of what a product, or a block of several, is given: that of its largest weight.

    None where no weight tells.
    """
    packed = [m.packed for m in module.modules() if isinstance(m, PackedLinear)]
    told = [
        weight
        for weight in (*packed, *module.parameters())
        # Whatever is narrower, as quantised weights are, is not computed in.
        if weight.is_floating_point() and weight.element_size() > 1
    ]
    return max(told, key=Tensor.numel).dtype if told else None


def _is_product(module: nn.Module) -> bool:
    return is_linear(module) or transposed(module)


def packed(module: nn.Module) -> nn.Module:
    """Return the packed layer for one that can be packed, anything else as it is."""
    held = weights_of(module)
    return module if held is None or not can_pack(held[0]) else PackedLinear(*held)


def exchange(module: nn.Module, make: Exchange) -> nn.Module:
    """Put what `make` returns in the place of the modules in `module`, or of itself."""
    made = make(module)
    if made is module:
        plain = _read_by(module)
        for name, child in module.named_children():
            if name not in plain and (found := exchange(child, make)) is not child:
                setattr(module, name, found)
    return made


def exchangeable(module: nn.Module) -> Iterator[nn.Module]:
    """The products in a module that `exchange` may put others in the place of."""
    if _is_product(module):
        yield module
    plain = _read_by(module)
    for name, child in module.named_children():
        if name not in plain:
            yield from exchangeable(child)


def _read_by(module: nn.Module) -> frozenset[str]:
    """The parts of a module whose weights it looks at itself; BLOOM's if it is to be exact."""
    if vars(module).get("slow_but_exact") is False:
        return frozenset()
    return weights_read(type(module).forward)


def for_all_owners(make: Exchange, owners: Iterable[nn.Module]) -> Exchange:
    """The same, but products of several `owners` that share their weights become one."""
    uses = Counter(key for owner in owners for p in owner.modules() if (key := _identity(p)))
    shared: dict[tuple[int, ...], nn.Module] = {}

    def once(module: nn.Module) -> nn.Module:
        key = _identity(module)
        if key is None or uses[key] == 1:
            return make(module)
        if key not in shared and (made := make(module)) is not module:
            shared[key] = made
        return shared.get(key, module)

    return once


def _identity(product: nn.Module) -> tuple[int, ...] | None:
    """The numbers of plain weight and bias of a linear layer, none alike; else None."""
    weights = [p for p in product._parameters.values() if p is not None]
    if not _is_product(product) or not all(map(is_plain, weights)):
        return None
    return tuple(map(id, weights))


@cache
def read_of_parts(forward: Callable[..., Any]) -> frozenset[tuple[str, str]]:
    """Name what a forward looks at of each part of its module: the part, and a thing in it."""
    found, part = set(), ""
    for each in dis.get_instructions(inspect.unwrap(forward)):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found.add((part, str(each.argval)))
            part = str(each.argval)
        else:
            part = ""
    return frozenset(found)


@cache
def weights_read(forward: Callable[..., Any]) -> frozenset[str]:
    """Name the parts of a module whose weights its forward looks at itself, as routers do."""
    return frozenset(part for part, name in read_of_parts(forward) if name == "weight")


def pack(module: nn.Module) -> nn.Module:
    """Replace the linear layers in `module`, or `module` itself, by packed ones."""
    return exchange(module, packed)


def has_copies(module: nn.Module) -> bool:
    """True if a product in a module was packed elsewhere than where its weight lay."""
    packed = (m for m in module.modules() if isinstance(m, PackedLinear))
    return any(not m.in_place for m in packed)


def spans(module: nn.Module) -> list[Span]:
    """List the memory spans of `module`'s weights, but for those that are pages of a file."""
    packed = [m.packed for m in module.modules() if isinstance(m, PackedLinear)]
    plain = [t for p in module.parameters() for t in parts(p) if t.device.type == "cpu"]
    files = Files.behind(plain)
    held = [t for t in plain if not files.holds(t)] + packed
    return [span(tensor) for tensor in held if tensor.numel()]


def packed_bytes(module: nn.Module) -> int:
    """Memory of the packed weights in `module`."""
    return sum(m.packed_bytes for m in module.modules() if isinstance(m, PackedLinear))
