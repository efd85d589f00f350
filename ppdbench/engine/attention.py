"""One attention function for every family, called by the transformers modules themselves.

Families hand over their scaling, soft cap and heads; masks come prebuilt from the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ppdbench.engine.joined import JoinedMask

NAME = "ppdbench"

BFLOAT16_PRODUCTS = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.ops.mkldnn._is_mkldnn_bf16_supported()
)
SLOW_FROM = 128  # keys


def attend(
    module: torch.nn.Module,
    query: Tensor,  # [batch, heads, query, head_dim]
    key: Tensor,  # [batch, kv_heads, key, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,  # as `Step.mask` or `Step.added` make it
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # [heads]
    **_: object,
) -> tuple[Tensor, None]:
    """Softmax attention; without a mask several queries are a causal prefill.

    `s_aux` are sinks: of a head's attention a part that goes to no key.
    """
    if isinstance(attention_mask, JoinedMask):
        parts = [
            attend(module, query[:, :, rows], keys, values, mask, scaling, softcap, s_aux)[0]
            for rows, keys, values, mask in attention_mask.parts(key, value)
        ]
        return torch.cat(parts, dim=1), None
    batch, heads, n_query, head_dim = query.shape
    groups = heads // key.shape[1]
    causal = attention_mask is None and n_query > 1
    if causal and softcap is None and s_aux is None:
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1
        )
        return out.transpose(1, 2).contiguous(), None
    # Query heads that share a KV head become rows of one product: KV is never copied.
    packed = query.reshape(batch, key.shape[1], groups * n_query, head_dim)
    mask = _causal(n_query, query.device) if causal else attention_mask
    if mask is not None and groups > 1 and mask.shape[2] == n_query > 1:
        mask = mask.repeat(1, 1, groups, 1)
    if softcap is not None or s_aux is not None:
        sinks = None if s_aux is None else s_aux.reshape(key.shape[1], groups)
        out = _by_hand(packed, key, value, mask, scaling, softcap, sinks)
    else:
        if _slow_alone(packed, key):
            packed = packed.repeat(1, 1, 2, 1)
        out = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
        out = out[:, :, : groups * n_query]
    whole = out.reshape(batch, heads, n_query, value.shape[-1]).transpose(1, 2)
    return whole.contiguous(), None  # as some layers take it; others would copy it themselves


def _slow_alone(query: Tensor, key: Tensor) -> bool:
    """True for a single row that takes the CPU's kernel longer than two rows would.

    In bfloat16 it multiplies matrices by the processor's own instructions, but a row without.
    """
    return (
        query.shape[2] == 1
        and query.dtype == torch.bfloat16
        and query.is_cpu
        and key.shape[2] >= SLOW_FROM
        and BFLOAT16_PRODUCTS
    )


def _causal(n: int, device: torch.device) -> Tensor:
    """Return the mask of a prefill: [1, 1, n, n]."""
    return torch.ones(1, 1, n, n, dtype=torch.bool, device=device).tril()


def _by_hand(
    query: Tensor,  # [batch, kv_heads, groups * query, head_dim]
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,  # [kv_heads, groups]
) -> Tensor:
    """Attention whose scores pass through softcap * tanh(score / softcap), or have sinks."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        each = sinks.repeat_interleave(query.shape[2] // sinks.shape[1], dim=1)
        sink = each[None, ..., None].to(scores.dtype).expand(len(scores), -1, -1, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights if sinks is None else weights[..., :-1]) @ value


def install(model: Any) -> None:
    """Make `model`'s attention modules call `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    model.config._attn_implementation = NAME
    text = model.config.get_text_config(decoder=True)
    if text is not model.config:
        text._attn_implementation = NAME
