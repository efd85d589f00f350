"""The heads of an attention block: where they stand in its products, and how their scores are made.

Most blocks hand queries, keys and values to a function that all families share, others attend in
code of their own. They differ in little: the order of what one product gives, the factor of
scores, and what is added to them or to their sum.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import mixers, query_heads, reads
from ppdbench.engine.flat.understood import NotUnderstoodError, has_experts

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.families import Family, Slopes

# Parts of blocks by their usual names.
FUSED = ("query_key_value", "qkv_proj", "c_attn", "Wqkv")
APART = ("q_proj", "k_proj", "v_proj")
QUERIES = (*APART, *FUSED)
# Attributes that hold the factor of scores, and those that hold what scores are divided by.
FACTORS, DIVISORS = ("scaling", "inv_norm_factor", "softmax_scale"), ("scale_attn", "norm_factor")
# Weights beside products, in blocks whose code reads them.
SINKS, BIAS = "sinks", "dense_bias"


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The heads of a layer: those of queries, those of keys and values, and how wide each is."""

    queries: int
    keys: int
    width: int
    """Of a query and a key."""
    value: int

    @property
    def asked(self) -> int:
        """The numbers of all queries of a row."""
        return self.queries * self.width

    @property
    def seen(self) -> int:
        """The numbers that they gather, all values of a row."""
        return self.queries * self.value

    @property
    def made(self) -> tuple[int, int, int]:
        """The numbers of all queries, keys and values of a row."""
        return self.asked, self.keys * self.width, self.keys * self.value


def sizes_of(adapter: Adapter) -> list[HeadSizes]:
    """The heads of each layer, with the keys and values that it looks at."""
    rows, shape = adapter.row_shapes, adapter.cache_shape
    found = []
    for i in range(shape.n_layers):
        row = rows[shape.source_of(i)]
        queries = query_heads(adapter.config, i)
        found.append(HeadSizes(queries, row.heads, row.key, row.value))
    return found


def block_of(layer: nn.Module, name: str) -> nn.Module:
    """The module of a layer that attends, which may stand in another of the same name."""
    block = layer.get_submodule(name)
    inner = dict(block.named_children())
    return inner["attention"] if [*inner] == ["attention"] else block


def handed_to(adapter: Adapter, layer: int) -> int:
    """The numbers of a row that a program of the attention of a layer is handed.

    Queries are among them where experts make them, keys and values as well where a memory does.
    """
    block: Any = adapter.layers[layer].get_submodule(adapter.blocks.attention)
    if has_experts(block):
        return adapter.hidden_size + sizes_of(adapter)[layer].asked
    if mixers(block):
        return sum(sizes_of(adapter)[layer].made)
    found = (getattr(block, name, None) for name in QUERIES)
    return next((int(p.in_features) for p in found if p is not None), adapter.hidden_size)


def scaling_of(block: nn.Module, family: Family) -> float:
    """The factor of scores."""
    if family.scaling is not None:
        return family.scaling
    for names, power in ((FACTORS, 1), (DIVISORS, -1)):
        for name in names:
            if isinstance(found := getattr(block, name, None), float | int):
                return float(found) ** power
    raise NotUnderstoodError(f"{type(block).__name__} does not say how scores are scaled")


def weights_beside(block: nn.Module) -> dict[str, Tensor]:
    """The weights that the code of a block reads beside its products."""
    own = dict(block.named_parameters(recurse=False))
    return {name: own[name].data for name in (SINKS, BIAS) if name in own and reads(block, name)}


def slopes_of(slopes: Slopes | None, scaling: float) -> tuple[Tensor | None, bool]:
    """Slopes of scores that are not scaled yet, and true if what they add is rounded."""
    if slopes is None:
        return None, False
    factor = 1.0 if slopes.scaled else 1 / scaling
    return slopes.of_heads.float() * factor, slopes.of_heads.dtype == torch.bfloat16


def clip_of(block: nn.Module) -> float | None:
    """The distance from nought at which a block clips queries, keys and values, if it does."""
    settings: Any = getattr(block, "config", None)
    found = (getattr(where, "clip_qkv", None) for where in (block, settings))
    return next((float(most) for most in found if most is not None), None)


def order_of(block: nn.Module, family: Family, heads: int, head_dim: int) -> Tensor | None:
    """The columns of one product in the order of queries, keys and values; None if they have it.

    Code that splits them is asked, where there is some; a family may say it, too.
    """
    split = getattr(block, "_split_heads", None)
    if hasattr(block, "query_key_value") and split is not None and _takes_one(split):
        product: Any = block.get_submodule("query_key_value")
        parts = split(torch.arange(product.out_features)[None, None])
        return torch.cat([part.flatten() for part in parts])
    if family.fused is not None:
        places = torch.tensor(list(family.fused(heads)))
    elif hasattr(block, "query_key_value") or getattr(block, "multi_query", None) is False:
        places = torch.arange(3 * heads).view(heads, 3).t().flatten()  # each with all three
    else:
        return None
    return (places[:, None] * head_dim + torch.arange(head_dim)).flatten()


def _takes_one(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) == 1
