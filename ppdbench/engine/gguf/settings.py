"""A model's settings in a GGUF file, as a transformers configuration.

transformers' own tables say which setting is which. They leave out what changes the numbers of
some models: scaled rotary positions, widths of heads, soft caps, windows. These are translated
here. A setting that nothing here knows is refused rather than passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdbench.engine.folders import check_family, check_sizes
from ppdbench.engine.gguf import gemma4
from ppdbench.engine.gguf.file import GgufFile
from ppdbench.engine.gguf.numbers import numbers
from ppdbench.errors import ConfigError, UnsupportedModel

# Families by their names in files, and their `model_type`.
MODEL_TYPES = {
    "llama": "llama",
    "bloom": "bloom",
    "falcon": "falcon",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    gemma4.ARCHITECTURE: "gemma4_text",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "gptneox": "gpt_neox",
    "lfm2": "lfm2",
    "mamba": "mamba",
    "minimax-m2": "minimax_m2",
    "nemotron": "nemotron",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
_USUAL = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "rope.freq_base": "rope_theta",
}
# Settings that the table of transformers lacks or has wrong, in families it has one for.
OWN: Mapping[str, Mapping[str, str | None]] = {
    "bloom": {
        "context_length": "seq_length",
        "feed_forward_length": None,
        "attention.head_count_kv": None,
    },
    "falcon": {
        "attention.head_count_kv": "num_kv_heads",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "feed_forward_length": "ffn_hidden_size",
    },
    gemma4.ARCHITECTURE: {
        **dict.fromkeys(gemma4.OWN),
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
    },
    "lfm2": {"attention.layer_norm_rms_epsilon": "norm_eps"},
    "mamba": {"attention.head_count": None, "feed_forward_length": None},
    "minimax-m2": {"rope.dimension_count": None},
    "nemotron": {"attention.layer_norm_epsilon": "norm_eps"},
    "stablelm": {
        "rope.freq_base": "rope_theta",
        "use_parallel_residual": "use_parallel_residual",
    },
    "starcoder2": {"rope.freq_base": "rope_theta"},
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
# Settings that the code of a family takes for granted, where it has a name for them too.
GRANTED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "minimax-m2": {"expert_gating_func": (2,)},  # sigmoids
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
    "expert_feed_forward_length": (),  # the tensors of experts say both
    "expert_shared_feed_forward_length": (),
    "logit_scale": (0.0, 1.0),
    "ssm.dt_b_c_rms": (False,),
    "tensor_data_layout": ("Meta AI original pth", "reference", "jploski"),
    "vocab_size": (),  # the embedding says it
}
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FACTORS, LONG, SHORT = gemma4.FACTORS, "rope_factors_long.weight", "rope_factors_short.weight"
LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the one whose scores are scaled otherwise
# Families whose heads are rotated in part, and those that say nothing of heads beside their number.
PARTLY_TURNED = ("minimax_m2", "nemotron", "phi3", "stablelm")
NO_WIDTHS = ("bloom", "falcon", "mamba")
# Tensors as wide as experts are, those that all tokens pass included.
EXPERTS, SHARED = "blk.0.ffn_down_exps.weight", "blk.0.ffn_down_shexp.weight"
EXPERT_WIDTHS: Mapping[str, Mapping[str, str]] = {
    "gemma4_text": {EXPERTS: "moe_intermediate_size"},
    "gpt_oss": {EXPERTS: "intermediate_size"},
    "minimax_m2": {EXPERTS: "intermediate_size"},
    "qwen2_moe": {
        EXPERTS: "moe_intermediate_size",
        SHARED: "shared_expert_intermediate_size",
    },
    "qwen3_moe": {EXPERTS: "moe_intermediate_size"},
}
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
    if name not in MODEL_TYPES:
        raise UnsupportedModel(
            f"model {file.path} does not load: GGUF files of {name[:60]!r} are not read; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    check_family(MODEL_TYPES[name], str(file.path))
    return MODEL_TYPES[name]


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
    """The settings of a family by their names in files; None where something else says them."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    names = MODEL_TYPES[architecture], architecture
    usual = next((GGUF_CONFIG_MAPPING[n] for n in names if n in GGUF_CONFIG_MAPPING), None)
    usual = FURTHER[architecture] if usual is None else usual
    table = {**usual, **LEFT_OUT, **OWN.get(architecture, {})}
    granted = GRANTED.get(architecture, {})
    return {name: setting for name, setting in table.items() if name not in granted}


def _described(file: GgufFile, model_type: str) -> dict[str, Any]:
    """Every setting that the configuration is made with."""
    from transformers.integrations import GGUF_CONFIG_DEFAULTS_MAPPING

    table = _table(file.architecture)
    found: dict[str, Any] = dict(GGUF_CONFIG_DEFAULTS_MAPPING.get(model_type, {}))
    prefix = f"{file.architecture}."
    for key, value in file.metadata.items():
        name = key.removeprefix(prefix)
        if name == key:
            continue
        if name in table:
            if (setting := table[name]) is not None:
                found[setting] = value
        elif name not in (*WIDTHS, *SCALING) and not _is_neutral(file, name, value):
            raise UnsupportedModel(
                f"{file.path}: {key} is {value!r}, a setting that this version does not know; "
                "convert the model as save_pretrained does"
            )
    _check_there(file, found, table)
    found |= _of_tokens(file) | _of_tensors(file, model_type) | _of_layers(file, found)
    check_sizes(found, str(file.path))
    return found | _of_family(file, model_type, found)


def _is_neutral(file: GgufFile, name: str, value: Any) -> bool:
    neutral = {**NEUTRAL, **GRANTED.get(file.architecture, {})}
    return name in neutral and (not neutral[name] or value in neutral[name])


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
    if model_type == "stablelm":
        found["use_qkv_bias"] = "blk.0.attn_q.bias" in file.tensors
    if model_type == "falcon":
        found["new_decoder_architecture"] = "blk.0.attn_norm_2.weight" in file.tensors
    for name, setting in EXPERT_WIDTHS.get(model_type, {}).items():
        if name in file.tensors:
            found[setting] = file.tensors[name].shape[-1]
    return found


def _of_layers(file: GgufFile, found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that lists of one value for each layer tell."""
    if file.architecture == gemma4.ARCHITECTURE:
        return gemma4.settings(file)
    heads = found.get("num_key_value_heads")
    if file.architecture != "lfm2" or not isinstance(heads, tuple):
        return {}
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if n else "conv" for n in heads],  # none: a convolution
        "block_auto_adjust_ff_dim": False,  # a file tells the width that was made of it
    }


def _of_family(file: GgufFile, model_type: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from others, as llama.cpp has them follow."""
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    if model_type == "gpt2":
        return {
            "n_positions": found["n_ctx"],
            "n_inner": file.setting("feed_forward_length"),
        }
    if model_type in NO_WIDTHS or file.architecture == gemma4.ARCHITECTURE:
        return {}
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
    if model_type in PARTLY_TURNED:
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
    if scaling is None or (file.architecture == gemma4.ARCHITECTURE and FACTORS in file.tensors):
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
