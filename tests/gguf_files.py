"""GGUF files written for tests: a stock model's weights, changed as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

# Families by their `model_type`: how llama.cpp calls them.
NAMES = {
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax-m2",
    "mistral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
SPECIALS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
END, TURN_END = 2, 4


def write(path: Path, model: Any, kind: str = "F32", **changed: Any) -> Path:
    """Write a transformers model as a GGUF file, its matrices of this type.

    `changed` are values of the header that are to be others, None for those to leave out.
    """
    config = model.config
    arch = NAMES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    values = {**_sizes(config), **_words(config.vocab_size)}
    for name, value in (values | changed).items():
        if value is not None:
            whole = name.startswith(("tokenizer.", "split.", "general."))
            _add(writer, name if whole else f"{arch}.{name}", value)
    for name, tensor in tensors(model, arch).items():
        quantised = gguf.GGMLQuantizationType[kind if tensor.ndim > 1 else "F32"]
        data = gguf.quantize(tensor.detach().float().contiguous().numpy(), quantised)
        writer.add_tensor(name, data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(model: Any, arch: str) -> dict[str, Tensor]:
    """The tensors of a file, by their names there."""
    config = model.config
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    found: dict[str, Tensor] = {}
    for name, tensor in _saved(model).items():
        if ".experts." in name:
            found |= _of_experts(arch, name, tensor)
        elif name.endswith((".sinks", ".layer_scalar")):
            found[f"{names.get_name(name)}.weight"] = tensor
        elif name.endswith("_correction_bias"):
            found[f"{names.get_name(name.removesuffix('_bias'))}.bias"] = tensor
        elif name.endswith(".router.scale"):
            found[f"blk.{name.split('.')[2]}.ffn_gate_inp.scale"] = tensor
        elif name.endswith(".per_expert_scale"):
            found[f"blk.{name.split('.')[2]}.ffn_down_exps.scale"] = tensor
        else:
            known = name.removeprefix("transformer.") if arch == "bloom" else name
            stored = names.get_name(known, (".weight", ".bias"))
            found[stored] = _changed(arch, name, tensor, config)
    if (rope := _factors(model)) is not None and arch == "llama":
        found["rope_freqs.weight"] = rope
    if arch == "gemma4":
        found["rope_freqs.weight"] = _turned_or_not(config)
    return found


def _saved(model: Any) -> dict[str, Tensor]:
    """Parameters, and the buffers that are saved with them."""
    saved, buffers = model.state_dict(), dict(model.named_buffers())
    return {**dict(model.named_parameters()), **{n: saved[n] for n in saved if n in buffers}}


def _turned_or_not(config: Any) -> Tensor:
    """Factors of the angles of a wide head: 1 for those that are turned."""
    width = config.per_layer_config["full_attention"].head_dim
    rope = config.rope_parameters["full_attention"]
    turned = int(width * rope["partial_rotary_factor"] / 2)
    return torch.tensor([1.0] * turned + [1e30] * (width // 2 - turned))


def _of_experts(arch: str, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """What experts multiply by first is stored apart, [expert, out, in]."""
    suffix = "bias" if name.endswith("_bias") else "weight"
    layer = name.split(".")[2]
    if arch == "gpt-oss" and suffix == "weight":
        tensor = tensor.transpose(1, 2)
    if arch == "gemma4" and "gate_up" in name:
        return {f"blk.{layer}.ffn_gate_up_exps.weight": tensor}
    if ".down_proj" in name:
        return {f"blk.{layer}.ffn_down_exps.{suffix}": tensor}
    half = tensor.shape[1] // 2
    cuts = (slice(0, None, 2), slice(1, None, 2))
    if arch != "gpt-oss":
        cuts = (slice(half), slice(half, None))
    return {
        f"blk.{layer}.ffn_{part}_exps.{suffix}": tensor[:, cut]
        for part, cut in zip(("gate", "up"), cuts, strict=True)
    }


def _changed(arch: str, name: str, tensor: Tensor, config: Any) -> Tensor:
    heads = getattr(config, "num_attention_heads", 0)
    if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        n = heads if "q_proj" in name else config.num_key_value_heads
        rows, width = tensor.shape
        return tensor.reshape(n, 2, rows // n // 2, width).swapaxes(1, 2).reshape(rows, width)
    if arch in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return tensor + 1
    if arch == "gpt2" and tensor.ndim == 2 and ".h." in name:
        return tensor.T
    if arch in ("bloom", "gptneox") and "query_key_value" in name:
        by_head = tensor.reshape(heads, 3, -1, *tensor.shape[1:])
        return by_head.transpose(0, 1).reshape(tensor.shape)
    if arch == "falcon" and "query_key_value" in name:
        return _by_kind(tensor, config)
    if name.endswith("A_log"):
        return -tensor.exp()
    if "conv" in name or "shared_expert_gate" in name:
        return tensor.squeeze()
    return tensor


def _by_kind(tensor: Tensor, config: Any) -> Tensor:
    """Falcon's queries of all heads, then all keys, then all values."""
    groups = config.num_kv_heads if config.new_decoder_architecture else 1
    width = config.hidden_size // config.num_attention_heads
    grouped = tensor.reshape(groups, -1, width, config.hidden_size)
    parts = grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:]
    return torch.cat([part.reshape(-1, config.hidden_size) for part in parts])


def _factors(model: Any) -> Tensor | None:
    """What each angle's speed was divided by, in models of the Llama 3.1 kind."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return None
    own = model.model.rotary_emb.inv_freq
    width = 2 * len(own)
    plain = rope["rope_theta"] ** -(torch.arange(0, width, 2) / width)
    return plain / own


# Families whose norms are the layer norms of old.
LAYER_NORM = ("bloom", "falcon", "gpt2", "gpt_neox", "nemotron", "stablelm", "starcoder2")
NO_ROPE = ("bloom", "gpt2")


def _sizes(config: Any) -> dict[str, Any]:
    kind = config.model_type
    layer_norm = kind in LAYER_NORM
    epsilon = "layer_norm_epsilon" if layer_norm else "layer_norm_rms_epsilon"
    eps = (
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
        "norm_epsilon",
    )
    values = {
        "context_length": getattr(config, "max_position_embeddings", 160),
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        f"attention.{epsilon}": next(float(getattr(config, n)) for n in eps if hasattr(config, n)),
    }
    if kind == "mamba":
        return values | _of_mamba(config)
    if kind != "gemma4_text":
        return values | _of_attention(config, kind)
    narrow = config.per_layer_config["sliding_attention"]
    return values | _of_attention(narrow, kind) | _of_gemma4(config)


def _of_mamba(config: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": config.intermediate_size,
        "ssm.state_size": config.state_size,
        "ssm.time_step_rank": config.time_step_rank,
        "ssm.dt_b_c_rms": False,
    }


def _of_attention(config: Any, kind: str) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = rope.get("partial_rotary_factor") or getattr(config, "rotary_pct", None) or 1.0
    widths = ("n_inner", "intermediate_size", "ffn_hidden_size")
    wide = next((getattr(config, n) for n in widths if getattr(config, n, None)), None)
    values = {
        "feed_forward_length": wide or 4 * config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    if kind not in NO_ROPE:
        values["rope.freq_base"] = rope.get("rope_theta")
        values["rope.dimension_count"] = int(width * turned)
    if kind == "falcon":
        values["attention.head_count_kv"] = (
            config.num_kv_heads if config.new_decoder_architecture else 1
        )
        values["tensor_data_layout"] = "jploski"
    elif kind == "lfm2":
        own = config.num_key_value_heads
        values["attention.head_count_kv"] = [
            own if layer == "full_attention" else 0 for layer in config.layer_types
        ]
        values |= {"shortconv.l_cache": config.conv_L_cache, "vocab_size": config.vocab_size}
    elif kind not in ("gpt2", "gpt_neox"):
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        values["attention.head_count_kv"] = heads
    if kind in ("qwen3", "qwen3_moe", "gpt_oss", "gemma2", "gemma3_text", "minimax_m2"):
        values |= {"attention.key_length": width, "attention.value_length": width}
    if kind in ("gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "phi3"):
        values["attention.sliding_window"] = config.sliding_window
    if kind in ("gemma2", "gemma4_text"):
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            values[name] = getattr(config, name, None)
    if kind in ("gpt_neox", "stablelm"):
        values["use_parallel_residual"] = config.use_parallel_residual
    if kind in ("gpt_oss", "minimax_m2", "qwen2_moe", "qwen3_moe"):
        values |= _of_choice(config)
    if kind == "minimax_m2":
        values["expert_gating_func"] = 2
    if rope.get("rope_type") in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") == "yarn":
        original = rope["original_max_position_embeddings"]
        values["rope.scaling.original_context_length"] = original
    return values


def _of_gemma4(config: Any) -> dict[str, Any]:
    """The settings in which its two kinds of layers differ."""
    n, shared = config.num_hidden_layers, config.num_kv_shared_layers
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    narrow, wide = (config.per_layer_config[f"{kind}_attention"] for kind in ("sliding", "full"))
    inner = [config.intermediate_size * (1 + (i >= n - shared)) for i in range(n)]
    values: dict[str, Any] = {
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": shared,
        "attention.head_count_kv": [
            (narrow if each else wide).num_key_value_heads for each in windowed
        ],
        "feed_forward_length": inner if config.use_double_wide_mlp else config.intermediate_size,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }
    for size, suffix in ((narrow, "_swa"), (wide, "")):
        names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        values |= dict.fromkeys((f"{name}{suffix}" for name in names), size.head_dim)
    if config.enable_moe_block:
        values |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.top_k_experts,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return values


def _of_choice(config: Any) -> dict[str, Any]:
    """The numbers of experts, and how wide they are."""
    alike = ("num_local_experts", "num_experts")
    wide = ("moe_intermediate_size", "intermediate_size")
    values = {
        "expert_count": next(getattr(config, n) for n in alike if hasattr(config, n)),
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": next(getattr(config, n) for n in wide if hasattr(config, n)),
    }
    if hasattr(config, "shared_expert_intermediate_size"):
        values["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return values


def _words(vocab: int) -> Mapping[str, Any]:
    """A byte-level vocabulary: special tokens, some bytes as they are spelled, two merges."""
    letters = [*"helowrdtHiabc,.?!0123456789", "Ġ", "Ċ", "Ã", "©", "he", "Ġw", "ll"]
    words = [*SPECIALS, *letters]
    words += [f"<unused{i}>" for i in range(len(words), vocab)]
    kinds = [3] * len(SPECIALS) + [1] * len(letters)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words[:vocab],
        "tokenizer.ggml.token_type": (kinds + [5] * vocab)[:vocab],
        "tokenizer.ggml.merges": ["h e", "Ġ w", "l l"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if name == "general.type":
        writer.kv_data[0].pop(name, None)  # the writer has put its own
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case _:
            writer.add_array(name, value)


def spoiled(path: Path, at: int, content: bytes) -> None:
    """Overwrite some bytes of a file."""
    whole = np.fromfile(path, np.uint8)
    whole[at : at + len(content)] = np.frombuffer(content, np.uint8)
    whole.tofile(path)
