"""One attention function for every family, called by the transformers modules themselves.

Families hand over their scaling, soft cap and heads; masks come prebuilt from the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "ppdbench"


def attend(
    module: torch.nn.Module,
    query: Tensor,  # [batch, heads, query, head_dim]
    key: Tensor,  # [batch, kv_heads, key, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,  # [batch or 1, 1, query, key], True where visible
    scaling: float | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Softmax attention; without a mask several queries are a causal prefill."""
    batch, heads, n_query, head_dim = query.shape
    groups = heads // key.shape[1]
    causal = attention_mask is None and n_query > 1
    if softcap is not None:
        out = _capped(query, key, value, attention_mask, scaling, softcap, causal)
    elif groups > 1 and not causal:
        # Query heads that share a KV head become rows of one product: KV is never copied.
        packed = query.reshape(batch, key.shape[1], groups * n_query, head_dim)
        mask = attention_mask
        if mask is not None and n_query > 1:
            mask = mask.repeat(1, 1, groups, 1)
        out = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
        out = out.reshape(batch, heads, n_query, value.shape[-1])
    else:
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            is_causal=causal,
            scale=scaling,
            enable_gqa=groups > 1,
        )
    return out.transpose(1, 2), None


def _capped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float,
    causal: bool,
) -> Tensor:
    """Attention whose scores pass through softcap * tanh(score / softcap) first."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.tanh(query @ key.transpose(2, 3) * scale / softcap) * softcap
    if causal:
        n = query.shape[2]
        mask = torch.ones(n, n, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ value


def install(model: Any) -> None:
    """Make `model`'s attention modules call `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    model.config._attn_implementation = NAME
