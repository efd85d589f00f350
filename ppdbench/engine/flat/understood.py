"""Models whose layers do nothing but what operations stand for.

The parts of a layer say by their names what they are, but its code may do more with them than
is usual: scale what a block gives, clip queries, leave a rotation out. So the code is asked, too:
whatever it mentions must be known here. What is not known runs eagerly, and is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType, NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ppdbench.engine.anatomy import mixers, names_in

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter

# What the code of layers and blocks may mention, none of which changes what is computed but as
# operations do: blocks, products and norms, shapes, settings of attention, and dropout.
WORDS = """
attention attn feed_forward ffn mlp self_attn self_attention layers
Wi Wo Wqkv c_attn c_fc c_proj dense dense_4h_to_h dense_h_to_4h down_proj fc1 fc2 fc_in fc_out
gate_proj gate_up_proj
k_proj o_proj out_proj q_attn q_proj qkv_proj query_key_value up_proj v_proj
attention_layernorm attn_norm attn_sub_norm feedforward_layernorm ffn_sub_norm final_layer_norm
input_layernorm k_layernorm k_norm key_layernorm ln_1 ln_2 ln_attn ln_cross_attn ln_mlp mlp_norm
norm norm_1 norm_2 post_attention_layernorm
post_feedforward_layernorm post_mlp_layernorm post_norm1 post_norm2 post_self_attn_layernorm
pre_feedforward_layernorm q_layernorm q_norm qk_norm query_layernorm self_attn_layer_norm
act act_fn activation_fn gelu_impl
activation_dropout attention_dropout attn_dropout drop dropout hidden_dropout out_drop
post_attention_dropout post_mlp_dropout resid_attn_dropout resid_dropout resid_mlp_dropout
residual_dropout p training
do_layer_norm_before qk_layernorm residual_multiplier residual_scale use_parallel_residual
use_qk_norm
apply_rotary_emb apply_rotary_pos_emb get_llama_4_attn_scale is_local_attention is_sliding
rope_parameters rotary_ndims rotate_half use_rope
clamp clamp_ clip_qkv embed_dim is_cross_attention kv_dim multi_query
head_dim head_size hidden_size
num_attention_heads num_heads num_key_value_groups num_key_value_heads
attn_logit_softcapping scaling sinks sliding_window split_size
ALL_ATTENTION_FUNCTIONS _attn_implementation _split_heads _upcast_and_reordered_attn config
eager_attention_forward get_interface repeat_kv reorder_and_upcast_attn
EncoderDecoderCache cross_attention_cache crossattention is_updated keys layer_idx
self_attention_cache update values
cat chunk contiguous device dtype expand float32 functional matmul nn reshape shape sigmoid size
softmax softplus split tanh to torch transpose type unsqueeze view
ValueError get getattr hasattr isinstance norms zip
F float force_rope g_proj gate_per_head key_multiplier v_head_dim v_scale
is_kv_shared_layer layer_type shared_kv_states store_full_length_kv v_norm
_gaussian_topk activation_sparsity altup altup_active_idx altup_correct_scale clone correct
correct_output_scale laurel linear_left linear_right math multiply post_laurel_norm predict
scale_corrected_output sqrt type_as
layer_dic linear_k_adapter_list linear_q_adapter_list linear_v_adapter_list
use_mem_rope use_shared_attention_adapter
hidden_size_per_layer_input layer_scalar per_layer_input_gate per_layer_projection
post_per_layer_input_norm
enable_moe_block experts is_moe_layer router
post_feedforward_layernorm_1 post_feedforward_layernorm_2 pre_feedforward_layernorm_2
"""
KNOWN = frozenset(WORDS.split())
# What blocks that attend in code of their own mention besides: the ways to multiply, to mask and to
# sum up that the kernel stands for, tables of turns, and settings that are asked for elsewhere.
OWN_WORDS = """
Softmax baddbmm beta bmm linear masked_fill scaled_dot_product_attention where
bias embed_positions encoder_attn encoder_attn_layer_norm weight
inv_norm_factor norm_factor scale_attn softmax_scale
apply_residual_connection_post_layernorm dense_bias is_causal layer_id n_heads
new_decoder_architecture num_kv_heads num_ln_in_parallel_attn parallel_attn pretraining_tp
rotary_dim slow_but_exact
_attn _get_embed_positions _merge_heads _reshape attn_dropout_p bias_dropout_add dropout_add
bfloat16 broadcast_to expand_as finfo flatten float16 full gather
get_seq_length int len max min permute range repeat tensor zeros zeros_like
"""
OWN = KNOWN | frozenset(OWN_WORDS.split())
# And those that keep what keys and values of all heads are made of.
LATENT_WORDS = """
kv_a_layernorm kv_a_proj_with_mqa kv_b_proj q_a_layernorm q_a_proj q_b_proj
kv_lora_rank q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim
apply_rotary_pos_emb_interleave rope_interleave
copy_ expand_kv new_empty
"""
LATENT = KNOWN | frozenset(LATENT_WORDS.split())
# And those that take a share of what some heads gather from what others do.
SHARES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
DIFFERENTIAL = frozenset({*SHARES, "lambda_init", "groupnorm", "exp", "sum"})
# And those whose queries experts make.
EXPERTS, KEYS_AND_VALUES = "experts", "kv_proj"
OF_EXPERTS = frozenset({KEYS_AND_VALUES, "map", "reduce", "repeat", "top_k"})
# And those whose queries grow with positions where a setting says so.
GROWING = "attn_temperature_tuning"
GROWTH_WORDS = """
arange attn_scale attn_temperature_tuning floor floor_scale get_seq_length log1p
"""
GROWN = frozenset(GROWTH_WORDS.split())
# Functions that are asked what they compute, so they may mention whatever they like: of turns of
# heads (of pairs side by side that come out half apart, by tables of complex numbers), and of what
# queries grow by. And those in whose place a function of ours runs.
ROTATION, GROWTH = "apply_rotary_pos_emb", "get_llama_4_attn_scale"
PARTING_ROTATION, COMPLEX_ROTATION = "apply_rotary_pos_emb_interleave", "apply_rotary_emb"
ROTATIONS = (ROTATION, PARTING_ROTATION, COMPLEX_ROTATION)
UNREAD = (
    *ROTATIONS,
    GROWTH,
    "_gaussian_topk",
    "eager_attention_forward",
    "_upcast_and_reordered_attn",
)


class NotUnderstoodError(Exception):
    """A layer is made of something that no operation stands for."""


class RefusedError(Exception):
    """Flat passes differ from eager ones by more than rounding."""


def check_model(adapter: Adapter) -> None:
    """Refuse what a model does around its layers, and rows that kernels do not keep so."""
    if adapter.keeps_latents and not (has_latents(adapter) or has_expert_heads(adapter)):
        raise NotUnderstoodError("its layers keep rows that keys and values are made of")
    if adapter.rotary_tables > len(("cosines", "sines")):
        raise NotUnderstoodError("its layers take no pair of rotary tables")


def has_expert_heads(adapter: Adapter) -> bool:
    """True if layers repeat the keys that they keep for queries of several experts."""
    path, (first, *_) = adapter.blocks.attention, adapter.layers
    return path in dict(first.named_modules()) and has_experts(first.get_submodule(path))


def has_latents(adapter: Adapter) -> bool:
    """True if layers keep one row for all heads, which keys and values are made of by a product."""
    return adapter.keeps_latents and bool(getattr(adapter.config, "kv_lora_rank", None))


def words_of(adapter: Adapter) -> frozenset[str]:
    """Names that the code of a model's layers may mention."""
    if adapter.anatomy.own_attention:
        return OWN
    return LATENT if has_latents(adapter) else KNOWN


def is_differential(block: nn.Module) -> bool:
    """True for attention of which a share is taken away, which pairs of weights make."""
    return all(hasattr(block, name) for name in SHARES)


def _more(block: nn.Module) -> frozenset[str]:
    """Names that the code of a block may mention beside those that all may."""
    if is_differential(block):
        return DIFFERENTIAL
    if has_experts(block):
        return OF_EXPERTS
    return GROWN if hasattr(block, GROWING) else frozenset()


def has_experts(block: nn.Module) -> bool:
    """True for attention whose queries experts make, who take what these gather."""
    return all(hasattr(block, name) for name in (EXPERTS, KEYS_AND_VALUES))


def is_given_heads(block: nn.Module) -> bool:
    """True for attention some of whose heads a part of it makes that runs as it is."""
    return has_experts(block) or bool(mixers(block))


def check_layer(layer: nn.Module, known: frozenset[str], *, alone: bool = False) -> None:
    """Refuse a layer whose code mentions what is not known, or that of its parts if not `alone`."""
    for part in [layer] if alone else layer.modules():
        if isinstance(part, nn.ModuleList) or not any(True for _ in part.children()):
            continue
        kind: Any = type(part)
        if unknown := sorted(_names(kind) - known - _more(part)):
            raise NotUnderstoodError(f"{kind.__name__} uses {', '.join(unknown)}")


@cache
def _names(kind: Any) -> frozenset[str]:
    """The names in the code of a kind of modules."""
    return frozenset(_mentioned(kind.forward, kind, set()))


def _mentioned(function: Callable[..., Any], kind: type, seen: set[Callable[..., Any]]) -> set[str]:
    """Names in a function's code, and in that of its neighbours that it calls."""
    seen.add(function)
    others = _neighbours(function, kind)
    return set(names_in(function)).union(
        *(_mentioned(other, kind, seen) for other in others if other not in seen)
    )


def _neighbours(function: Callable[..., Any], kind: type) -> Iterator[FunctionType]:
    """The functions of the same module, or of the same kind, that a function mentions."""
    own = inspect.unwrap(function)
    for name in names_in(own):
        other = globals_of(own).get(name) or getattr(kind, name, None)
        other = getattr(other, "__func__", other)  # of a method of the class
        if not isinstance(other, FunctionType) or name in UNREAD:
            continue
        if other.__module__ == own.__module__:
            yield other


def globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that a function's module has."""
    found: dict[str, Any] = getattr(function, "__globals__", {})
    return found


def described_by(module: nn.Module) -> object:
    """All that says what a small module computes but the numbers of its weights.

    None where something else may have a say: parts, hooks, attributes that are no plain settings.
    """
    hooks = module._forward_hooks or module._forward_pre_hooks
    if hooks or module._buffers or module._modules:
        return None
    settings = {n: value for n, value in vars(module).items() if n not in _OF_ALL_MODULES}
    if not all(map(_is_plain_setting, settings.values())):
        return None
    weights = ((n, p.shape, p.dtype) for n, p in module.named_parameters())
    kind: Any = type(module)
    return kind, kind.forward, tuple(weights), tuple(settings.items())


_OF_ALL_MODULES = frozenset(vars(nn.Module()))


def _is_plain_setting(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain_setting, value))
    return isinstance(value, int | float | str | torch.dtype | NoneType)
