"""A model's settings in a GGUF file, as a transformers configuration.

transformers' own tables say which setting is which. They leave out what changes the numbers of
some models: scaled rotary positions, widths of heads, soft caps, windows. These are translated
here. A setting that nothing here knows is refused rather than passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdbench.engine.families import FAMILIES
from ppdbench.engine.folders import check_family, check_sizes
from ppdbench.engine.gguf.file import GgufFile
from ppdbench.engine.gguf.numbers import numbers
from ppdbench.errors import ConfigError, UnsupportedModel

# Families whose name in a file is not their `model_type`.
MODEL_TYPES = {
    "gemma3": "gemma3_text",
    "gptneox": "gpt_neox",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
_USUAL = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "rope.freq_base": "rope_theta",
}
# Settings of families that transformers has no table for.
FURTHER: Mapping[str, Mapping[str, str]] = {
    "olmo2": {
        **_USUAL,
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    },
    "gptneox": {
        **_USUAL,
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "use_parallel_residual": "use_parallel_residual",
    },
}
# Settings that its table lacks, in every family that has them.
LEFT_OUT = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
}
# Read elsewhere in this module, or of no weight where they have these values.
WIDTHS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
SCALING = (
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear"),
    "rope.scaling.original_context_length",
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "rope.scaling.finetuned": (True, False),
    "rope.freq_base_swa": (10000.0,),
    "attention.sliding_window_pattern": (6,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (0.0, 1.0),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "vocab_size": (),  # the embedding says it
}
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the one whose scores are scaled otherwise
CONTROL = 3  # the type of tokens that are no text
# Tokens that end a turn, where a file's chat template writes them.
TURN_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_text|>"),
    *("<|endoftext|>", "<|return|>", "<turn|>", "</s>"),
)


def configuration(file: GgufFile) -> Any:
    """The transformers configuration of the model in a file."""
    from transformers import AutoConfig

    model_type = check_architecture(file)
    config = AutoConfig.for_model(model_type, **_described(file, model_type))
    _scale_positions(file, config)
    return config


def check_architecture(file: GgufFile) -> str:
    """The `model_type` of a file's family; families that do not run are refused."""
    name = file.architecture
    if not _table(name):
        known = [model_type for model_type in FAMILIES if _table(_file_name(model_type))]
        raise UnsupportedModel(
            f"model {file.path} does not load: GGUF files of {name[:60]!r} are not read; "
            f"supported: {', '.join(known)}"
        )
    model_type = MODEL_TYPES.get(name, name)
    check_family(model_type, str(file.path))
    return model_type


def end_tokens(file: GgufFile) -> list[int]:
    """Every token that ends an output: named by the file, or written by its template for that."""
    named = (file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    template = file.metadata.get("tokenizer.chat_template", "")
    kinds = file.metadata.get("tokenizer.ggml.token_type", ())
    words = file.metadata.get("tokenizer.ggml.tokens", ())
    turns = (
        i
        for i, (word, kind) in enumerate(zip(words, kinds, strict=False))
        if kind == CONTROL and word in TURN_ENDS and word in template
    )
    return sorted({*(int(token) for token in named if token is not None), *turns})


def _table(architecture: str) -> Mapping[str, str | None]:
    from transformers.integrations import GGUF_CONFIG_MAPPING

    name = MODEL_TYPES.get(architecture, architecture)
    if name == "gemma3_text":
        name = "gemma3"
    if name in ("general", "tokenizer"):
        return {}
    return {**(GGUF_CONFIG_MAPPING.get(name) or FURTHER.get(architecture, {}))}


def _file_name(model_type: str) -> str:
    names = {there: name for name, there in MODEL_TYPES.items()}
    return names.get(model_type, model_type)


def _described(file: GgufFile, model_type: str) -> dict[str, Any]:
    """Every setting that the configuration is made with."""
    from transformers.integrations import GGUF_CONFIG_DEFAULTS_MAPPING

    table = {**_table(file.architecture), **LEFT_OUT}
    found: dict[str, Any] = dict(GGUF_CONFIG_DEFAULTS_MAPPING.get(model_type, {}))
    prefix = f"{file.architecture}."
    for key, value in file.metadata.items():
        name = key.removeprefix(prefix)
        if name == key:
            continue
        if name in table:
            if (setting := table[name]) is not None:
                found[setting] = value
        elif name not in (*WIDTHS, *SCALING) and not _is_neutral(name, value):
            raise UnsupportedModel(
                f"{file.path}: {key} is {value!r}, a setting that this version does not know; "
                "convert the model as save_pretrained does"
            )
    _check_there(file, found, table)
    found |= _of_tokens(file) | _of_tensors(file, model_type)
    check_sizes(found, str(file.path))
    return found | _of_family(file, model_type, found)


def _is_neutral(name: str, value: Any) -> bool:
    return name in NEUTRAL and (not NEUTRAL[name] or value in NEUTRAL[name])


def _check_there(file: GgufFile, found: Mapping[str, Any], table: Mapping[str, str | None]) -> None:
    needed = ("block_count", "embedding_length", "attention.head_count", "context_length")
    for key in needed:
        setting = table.get(key)
        if setting is not None and setting not in found:
            raise ConfigError(f"{file.path}: {file.architecture}.{key} is missing; fetch it again")


def _of_tokens(file: GgufFile) -> dict[str, Any]:
    """The ids of special tokens."""
    ends = end_tokens(file)
    return {
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _of_tensors(file: GgufFile, model_type: str) -> dict[str, Any]:
    """The settings that only the tensors tell."""
    if EMBEDDING not in file.tensors:
        raise ConfigError(f"{file.path} lacks the tensor {EMBEDDING}; fetch it again")
    found: dict[str, Any] = {
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in file.tensors,
    }
    if model_type == "llama":
        found["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        found["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    return found


def _of_family(file: GgufFile, model_type: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from others, as llama.cpp has them follow."""
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    if model_type == "gpt2":
        return {
            "n_positions": found["n_ctx"],
            "n_inner": file.setting("feed_forward_length"),
        }
    assert type(heads) is int and type(hidden) is int  # seen before
    width = file.setting("attention.key_length", hidden // heads)
    if file.setting("attention.value_length", width) != width:
        raise UnsupportedModel(
            f"{file.path}: keys and values of different widths are not supported"
        )
    turned = file.setting("rope.dimension_count", width)
    if model_type == "gpt_neox":
        return {"rotary_pct": turned / width}
    own: dict[str, Any] = {"head_dim": width}
    if model_type == "phi3":
        own["partial_rotary_factor"] = turned / width
    elif turned != width:
        raise UnsupportedModel(
            f"{file.path}: {turned} of {width} numbers of a head are rotated; supported: all"
        )
    if model_type in ("gemma2", "gemma3_text"):
        largest = found["num_hidden_layers"] == LARGEST_GEMMA[file.architecture]
        own["query_pre_attn_scalar"] = hidden // heads if largest else width
    return own


# Positions


def _scale_positions(file: GgufFile, config: Any) -> None:
    """Put scaled rotary positions into a configuration that has plain ones."""
    scaling = _scaling(file, config)
    if scaling is None:
        return
    rope = config.rope_parameters
    # Layers that see a window turn at their own speed, and that is not scaled.
    plain = rope.get("full_attention", rope)
    plain |= scaling
    if "original_max_position_embeddings" in scaling and file.architecture == "phi3":
        config.original_max_position_embeddings = scaling["original_max_position_embeddings"]


def _scaling(file: GgufFile, config: Any) -> dict[str, Any] | None:
    kind = file.setting("rope.scaling.type", "none")
    factor = file.setting("rope.scaling.factor") or file.setting("rope.scale_linear")
    context = int(getattr(config, "max_position_embeddings", 0))
    original = file.setting("rope.scaling.original_context_length", context)
    if kind == "none" and factor in (None, 0.0, 1.0):
        return _stored_factors(file, original, context)
    if FACTORS in file.tensors or not factor:
        raise UnsupportedModel(
            f"{file.path}: rotary positions scaled by {kind!r} and by stored factors, or by "
            "nothing; supported: one of them"
        )
    if kind in ("none", "linear"):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        shape = {"factor": factor, "original_max_position_embeddings": original}
        return {"rope_type": "yarn", **shape, **_attention_factor(file)}
    raise UnsupportedModel(
        f"{file.path}: rotary positions scaled by {kind!r}; supported: linear, yarn, stored factors"
    )


def _stored_factors(file: GgufFile, original: int, context: int) -> dict[str, Any] | None:
    """The factors of each angle, where the file holds them as tensors."""
    if FACTORS in file.tensors:
        factors = numbers(file, FACTORS)
        # The same for long and for short texts, and nothing else scaled.
        return {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "original_max_position_embeddings": context,
            "attention_factor": 1.0,
        }
    if LONG not in file.tensors or SHORT not in file.tensors:
        return None
    return {
        "rope_type": "longrope",
        "long_factor": numbers(file, LONG),
        "short_factor": numbers(file, SHORT),
        "original_max_position_embeddings": original,
        **_attention_factor(file),
    }


def _attention_factor(file: GgufFile) -> dict[str, float]:
    factor = file.setting("rope.scaling.attn_factor")
    return {} if factor is None else {"attention_factor": factor}
