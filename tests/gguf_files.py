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
NAMES = {"gemma3_text": "gemma3", "gpt_neox": "gptneox", "mistral": "llama"}
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
    found = {
        names.get_name(name, (".weight", ".bias")): _changed(arch, name, tensor, config)
        for name, tensor in model.named_parameters()
    }
    if (rope := _factors(model)) is not None and arch == "llama":
        found["rope_freqs.weight"] = rope
    return found


def _changed(arch: str, name: str, tensor: Tensor, config: Any) -> Tensor:
    heads = config.num_attention_heads
    if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        n = heads if "q_proj" in name else config.num_key_value_heads
        rows, width = tensor.shape
        return tensor.reshape(n, 2, rows // n // 2, width).swapaxes(1, 2).reshape(rows, width)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if arch == "gpt2" and tensor.ndim == 2 and ".h." in name:
        return tensor.T
    if arch == "gptneox" and "query_key_value" in name:
        by_head = tensor.reshape(heads, 3, -1, *tensor.shape[1:])
        return by_head.transpose(0, 1).reshape(tensor.shape)
    return tensor


def _factors(model: Any) -> Tensor | None:
    """What each angle's speed was divided by, in models of the Llama 3.1 kind."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return None
    own = model.model.rotary_emb.inv_freq
    width = 2 * len(own)
    plain = rope["rope_theta"] ** -(torch.arange(0, width, 2) / width)
    return plain / own


def _sizes(config: Any) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    kind = config.model_type
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = rope.get("partial_rotary_factor") or getattr(config, "rotary_pct", None) or 1.0
    layer_norm = kind in ("gpt2", "gpt_neox")
    epsilon = "layer_norm_epsilon" if layer_norm else "layer_norm_rms_epsilon"
    eps = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    values = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.n_inner if kind == "gpt2" else config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        f"attention.{epsilon}": next(float(getattr(config, n)) for n in eps if hasattr(config, n)),
    }
    if kind != "gpt2":
        values["rope.freq_base"] = rope.get("rope_theta")
        values["rope.dimension_count"] = int(width * turned)
    if not layer_norm:
        values["attention.head_count_kv"] = config.num_key_value_heads
    if kind in ("qwen3", "gemma2", "gemma3_text"):
        values |= {"attention.key_length": width, "attention.value_length": width}
    if kind in ("gemma2", "gemma3_text", "phi3"):
        values["attention.sliding_window"] = config.sliding_window
    if kind == "gemma2":
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            values[name] = getattr(config, name)
    if kind == "gpt_neox":
        values["use_parallel_residual"] = config.use_parallel_residual
    if rope.get("rope_type") == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
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
