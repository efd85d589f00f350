"""Settings of Gemma 4 in a GGUF file, whose layers are of two sizes.

Layers that look at all rows have wider heads than those that see a window, fewer of them for keys
and values, and turn only a part of their angles: a file holds a factor for each, so large where an
angle is not turned that nothing is left of it. The last layers take keys and values of earlier
ones, and their MLPs may be twice as wide.
"""

from __future__ import annotations

from typing import Any

from ppdbench.engine.gguf.file import GgufFile
from ppdbench.engine.gguf.numbers import numbers
from ppdbench.errors import ConfigError, UnsupportedModel

ARCHITECTURE = "gemma4"
PATTERN = "attention.sliding_window_pattern"
# Settings that are read here and nowhere else.
OWN = (
    *("attention.key_length", "attention.key_length_swa", PATTERN),
    *("attention.value_length", "attention.value_length_swa"),
    *("rope.dimension_count", "rope.dimension_count_swa", "rope.freq_base", "rope.freq_base_swa"),
)
FACTORS = "rope_freqs.weight"
WORDS_OF_LAYERS = "per_layer_token_embd.weight"
# A factor from which on an angle is not turned at all.
NOT_TURNED = 1e20
# Speeds of layers that see a window, and of the others, where a file does not tell them.
BASES = {"rope.freq_base_swa": 1e4, "rope.freq_base": 1e6}


def settings(file: GgufFile) -> dict[str, Any]:
    """The settings that follow from more than one value of a file, or from its tensors."""
    n = file.setting("block_count")
    windowed = _by_layer(file, PATTERN, n)  # first: no file holds more values than it has bytes
    heads = _by_layer(file, "attention.head_count_kv", n)
    inner = _by_layer(file, "feed_forward_length", n)
    narrow, wide = _width(file, "_swa"), _width(file, "")
    own = [i for i in range(n) if not windowed[i]]
    with_experts = bool(file.setting("expert_count", 0))
    first_shared = n - file.setting("attention.shared_kv_layers", 0)
    found: dict[str, Any] = {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed],
        "head_dim": narrow,
        "num_key_value_heads": next((heads[i] for i in range(n) if windowed[i]), heads[0]),
        "per_layer_config": {i: {"head_dim": wide, "num_key_value_heads": heads[i]} for i in own},
        "attention_k_eq_v": any(
            f"blk.{i}.attn_v.weight" not in file.tensors for i in own if i < first_shared
        ),
        "intermediate_size": inner[0],
        "use_double_wide_mlp": inner[-1] == 2 * inner[0],
        "hidden_size_per_layer_input": file.setting("embedding_length_per_layer_input", 0),
        "rope_parameters": _turns(file, wide),
        "enable_moe_block": with_experts,
    }
    if WORDS_OF_LAYERS in file.tensors:
        found["vocab_size_per_layer_input"] = file.tensors[WORDS_OF_LAYERS].shape[0]
    return found


def _by_layer(file: GgufFile, name: str, n: int) -> tuple[int, ...]:
    """A value for each layer; most files give one for all where all have the same."""
    value = file.setting(name)
    values = (value,) * n if isinstance(value, int) and name != PATTERN else value
    if not isinstance(values, tuple) or not values or len(values) != n:
        raise ConfigError(
            f"{file.path}: {ARCHITECTURE}.{name} is {str(value)[:40]}, which tells nothing of "
            f"{n} layers; fetch it again"
        )
    return values


def _width(file: GgufFile, suffix: str) -> int:
    """The width of a head in layers of one size."""
    key, value, turned = (
        file.setting(f"{name}{suffix}")
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    )
    if type(key) is not int or value not in (None, key) or turned not in (None, key):
        raise UnsupportedModel(
            f"{file.path}: heads of {key} numbers, values of {value}, of which {turned} are "
            "rotated; supported: three times the same"
        )
    return key


def _turns(file: GgufFile, width: int) -> dict[str, dict[str, Any]]:
    """The rotary settings of both types of layers."""
    windowed, all_rows = (float(file.setting(name, usual)) for name, usual in BASES.items())
    return {
        "sliding_attention": {"rope_type": "default", "rope_theta": windowed},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": all_rows,
            "partial_rotary_factor": _turned(file, width),
        },
    }


def _turned(file: GgufFile, width: int) -> float:
    """The share of a wide head that is turned."""
    if FACTORS not in file.tensors:
        return 1.0
    factors = numbers(file, FACTORS)
    turned = sum(factor == 1.0 for factor in factors)
    left = factors[turned:]
    if len(factors) != width // 2 or not all(factor > NOT_TURNED for factor in left):
        raise UnsupportedModel(
            f"{file.path}: angles of heads slowed down by factors of their own; supported: those "
            "of the first angles 1, of the others such that they are not turned"
        )
    return 2 * turned / width
