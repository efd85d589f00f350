"""Passes over few rows as a compiler likes them: sums over rows of plain weights.

One row against a matrix is bound by memory. Written as a sum of products it compiles to loops
that read each weight once, in order, which gets more of the memory's speed than a matrix
kernel does; further rows reuse what was read. The same goes for attention.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.packing import PackedLinear

NAME = "ppdbench-narrow"


class FewRowsLinear(nn.Module):
    """y = x W^T + b, row by row of x."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[1, row, in_features] to [1, row, out_features]."""
        n, width = x.shape[1:]
        # A view that the compiler takes literally: x is in memory then, and what it is made of
        # (a norm, an activation) is not worked out again for every row of W.
        x = torch.as_strided(x.contiguous(), (n, width), (width, 1))
        rows = [(self.weight.float() * x[i].float()).sum(-1) for i in range(n)]
        out = torch.stack(rows).to(x.dtype)[None]
        return out if self.bias is None else out + self.bias


def few_rows_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, query, head_dim]
    key: Tensor,  # [1, kv_heads, key, head_dim], float32
    value: Tensor,
    attention_mask: Tensor,  # [1, 1, query, key], True where visible
    scaling: float | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Softmax attention; query heads that share a KV head are rows of one product."""
    heads, n_query, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    scale = head_dim**-0.5 if scaling is None else scaling
    rows = query[0].reshape(kv_heads, -1, 1, head_dim).float() * scale
    scores = (rows * key[0, :, None]).sum(-1)  # [kv_heads, row, key]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    mask = attention_mask[0].repeat(1, heads // kv_heads, 1)
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    out = (weights[..., None] * value[0, :, None]).sum(-2)
    return out.to(query.dtype).reshape(1, heads, n_query, -1).transpose(1, 2), None


class TracedRows:
    """A layer's cache while the layer is recorded: rows are written where they are told."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, key_length: int) -> None:
        self.keys, self.values, self.rows, self.key_length = keys, values, rows, key_length

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows; all rows that their queries may look at."""
        self.keys.index_copy_(2, self.rows, key)
        self.values.index_copy_(2, self.rows, value)
        keys, values = self.read()
        return keys[:, :, : self.key_length], values[:, :, : self.key_length]

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all rows there are."""
        return self.keys, self.values


class Float32Rows(TracedRows):
    """The same for the compiler: what is read is float32."""

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all rows there are, widened."""
        # Widened as a whole, of which the compiler reads what is used. Widening a part would ask
        # how it lies in memory, and settle that it never is all of it.
        return self.keys.float(), self.values.float()


def for_few_rows(layer: nn.Module) -> Any:
    """A copy of `layer` or of a head whose products and attention are written as sums."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, few_rows_attention)
    products = [m for m in layer.modules() if isinstance(m, nn.Linear | PackedLinear)]
    twin = copy.deepcopy(layer, {id(product): _few_rows(product) for product in products})
    configs: list[Any] = [m.config for m in twin.modules() if hasattr(m, "config")]
    for config in configs:
        config._attn_implementation = NAME
    return twin


def _few_rows(product: nn.Linear | PackedLinear) -> FewRowsLinear:
    """The same product over the same memory."""
    weight = product.plain if isinstance(product, PackedLinear) else product.weight
    return FewRowsLinear(weight.data, None if product.bias is None else product.bias.data)
