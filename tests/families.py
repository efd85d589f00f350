"""A tiny random model of every supported family, in float32."""

from __future__ import annotations

import copy
from typing import Any

import torch

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {**COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
WINDOW = 7

# name -> (model type, configuration); one family may appear in several shapes
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GROUPED),
    "llama-mha-tied": (
        "llama",
        {**GROUPED, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "llama3-rope": (
        "llama",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "mistral": ("mistral", {**GROUPED, "sliding_window": None}),
    "mistral-window": ("mistral", {**GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("qwen2", GROUPED),
    "qwen2-window": (
        "qwen2",
        {**GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 12}),
    "gemma2": (
        "gemma2",
        {
            **GROUPED,
            "head_dim": 12,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 12,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {**GROUPED, "head_dim": 12, "sliding_window": WINDOW, "query_pre_attn_scalar": 12},
    ),
    "phi3": ("phi3", {**GROUPED, "sliding_window": None}),
    "phi3-window": ("phi3", {**GROUPED, "sliding_window": WINDOW}),
    "olmo2": ("olmo2", GROUPED),
    "gpt2": ("gpt2", {**COMMON, "n_inner": 48}),
    "gpt_neox": ("gpt_neox", {**COMMON, "intermediate_size": 48, "rotary_pct": 0.5}),
    "gpt_neox-serial": (
        "gpt_neox",
        {**COMMON, "intermediate_size": 48, "use_parallel_residual": False},
    ),
    "opt": ("opt", {**COMMON, "ffn_dim": 48}),
    "opt-350m-like": (
        "opt",
        {**COMMON, "ffn_dim": 48, "do_layer_norm_before": False, "word_embed_proj_dim": 16},
    ),
}


def stock_model(name: str, seed: int = 0, **overrides: Any) -> Any:
    """A transformers model as a user would load it, its weights large enough to have opinions."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, arguments = FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**copy.deepcopy(arguments), **overrides})
    torch.manual_seed(seed)
    # Not every release's fast attention knows soft caps; the plain one always does.
    plain = {"attn_implementation": "eager"} if "attn_logit_softcapping" in arguments else {}
    model = AutoModelForCausalLM.from_config(config, **plain).eval()
    with torch.no_grad():
        for tensor_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                # The usual 0.02 makes every logit a near-tie, which would test rounding.
                parameter.normal_(0.0, 0.25)
            elif "bias" in tensor_name:
                parameter.normal_(0.0, 0.1)
    return model


def greedy_truth(model: Any, prompt: list[int], n: int, **options: Any) -> list[int]:
    """New tokens of transformers' own greedy generate()."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
    new: list[int] = out[0, len(prompt) :].tolist()
    return new
