"""The same model in a wider type: what its passes would give if they did not round.

Nothing is kept in that type. A layer is copied without its products when it runs, and products
widen their weights some rows at a time, so that a check needs hardly any memory of its own.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.families import is_linear
from ppdbench.engine.left_out import exchanged
from ppdbench.engine.packing import PackedLinear

WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
ROWS = 4096  # of a weight that are widened at once


class WideProduct(nn.Module):
    """A product with another's weights, computed in a wider type."""

    def __init__(self, product: nn.Linear | PackedLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self._of = (product,)  # in a tuple, so that its weights are not taken for ours
        self._dtype = dtype

    @property
    def weight(self) -> Tensor:
        """All of the weights at once, for those that look at them themselves, as mixers do."""
        return self._rows().to(self._dtype)

    @property
    def bias(self) -> Tensor | None:
        """The bias, in the wider type."""
        (product,) = self._of
        return None if product.bias is None else product.bias.to(self._dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        x = x.to(self._dtype)
        parts = torch.split(self._rows(), ROWS)
        out = torch.cat([linear(x, part.to(self._dtype)) for part in parts], dim=-1)
        return out if (bias := self.bias) is None else out + bias

    def _rows(self) -> Tensor:
        (product,) = self._of
        return product.rows() if isinstance(product, PackedLinear) else product.weight


class WideModule(nn.Module):
    """A module that runs as a copy of itself in a wider type, made for the call."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._of = (module,)
        device = next((p.device for p in module.parameters()), None)
        # Adapters ask the parameters of a module for its device and its type.
        self.mark = nn.Parameter(torch.empty(0, dtype=dtype, device=device), requires_grad=False)

    def forward(self, *given: Any, **named: Any) -> Any:
        """Run a wide copy of the module."""
        return wide_copy(self._of[0], self.mark.dtype)(*given, **named)


class WideOutput(WideModule):
    """A module that runs as it is, its output in a wider type."""

    def forward(self, *given: Any, **named: Any) -> Any:
        """Run the module, and widen what it gives."""
        return self._of[0](*given, **named).to(self.mark.dtype)


def wide_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of `module` in a wider type, over the very same weights of its products."""
    products = [m for m in module.modules() if is_linear(m) or isinstance(m, PackedLinear)]
    memo: dict[int, Any] = {id(product): WideProduct(product, dtype) for product in products}
    memo |= {id(m.config): m.config for m in module.modules() if hasattr(m, "config")}
    twin: nn.Module = copy.deepcopy(module, memo)
    one_by_one(twin, dtype)
    return twin.to(dtype)


def one_by_one(module: nn.Module, dtype: torch.dtype) -> dict[nn.Module, Any]:
    """Multiply by experts one after another where products of groups do not know the type.

    The configurations that such modules had before, by module.
    """
    before: dict[nn.Module, Any] = {}
    for part in module.modules() if dtype == torch.float64 else ():
        config = vars(part).get("config")
        if "experts" in type(part).__name__.lower() and config is not None:
            before[part], own = config, copy.copy(config)
            own._experts_implementation = "eager"
            part.config = own
    return before


def _wide(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same in a wider type; words are looked up as they are."""
    if isinstance(module, nn.ModuleList):
        return nn.ModuleList(_wide(each, dtype) for each in module)
    kind = WideOutput if isinstance(module, nn.Embedding) else WideModule
    return kind(module, dtype)


def wide_adapter(adapter: Adapter, dtype: torch.dtype) -> Adapter:
    """The same parts, computing in a wider type on the very words that the model itself reads."""
    layers = {i: WideModule(layer, dtype) for i, layer in enumerate(adapter.layers)}
    twin = adapter.with_layers(layers)
    twin.embedding = WideOutput(adapter.embedding, dtype)
    twin.head = WideModule(adapter.head, dtype)
    if adapter.final_norm is not None:
        twin.final_norm = WideModule(adapter.final_norm, dtype)
    if adapter.transform is not None:
        twin.transform = WideModule(adapter.transform, dtype)
    twin.body = copy.copy(adapter.body)
    twin.body._modules = dict(adapter.body._modules)
    own = adapter.body.named_parameters(recurse=False)
    twin.body._parameters = {name: nn.Parameter(p.to(dtype), False) for name, p in own}
    if (path := adapter.family.embedding_norm) is not None:
        norm = WideModule(adapter.body.get_submodule(path), dtype)
        twin.body = exchanged(twin.body, path, norm)
    for name in adapter.around:
        setattr(twin.body, name, _wide(getattr(twin.body, name), dtype))
    if adapter.carried is not None:
        twin.carried = adapter.carried.over(twin.body)
    twin._rotary = {}
    return twin
