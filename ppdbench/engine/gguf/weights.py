"""The weights of a GGUF file in a transformers model, dequantised tensor by tensor.

The `gguf` package says which tensor is which weight and what its numbers are. llama.cpp stores
some of them changed, and in two tensors what experts multiply by first; both is undone here. At no
time is there more beside the model than a piece of a tensor, or all of one that is changed or
joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ppdbench.engine.gguf.file import GgufFile, StoredTensor
from ppdbench.engine.gguf.levels import has_levels, read_levels
from ppdbench.engine.gguf.numbers import pieces
from ppdbench.engine.gguf.settings import FACTORS, LONG, SHORT
from ppdbench.engine.levels import Levels, keep
from ppdbench.errors import ConfigError, UnsupportedModel
from ppdbench.machine.garbage import import_for_good
from ppdbench.machine.pages import room_for_weight

# What experts multiply by first is one weight in transformers, two tensors in a file, one half
# behind the other, or number by number in families where they alternate.
JOINED, HALVES = "gate_up_proj", ("gate", "up")
ALTERNATING = ("gpt-oss",)
# Weights that are no part of a module of their own, beside those of experts.
BARE = (".sinks", ".layer_scalar", ".e_score_correction_bias")
# Weights that files hold as scales of other parts.
SCALES = {".router.scale": ".router.proj", ".router.per_expert_scale": ".experts.down_proj"}

# How a stored tensor becomes a weight, given the model's configuration.
Change = Callable[[Tensor, Any], Tensor]
# Makes room for a weight of a shape and a type.
Empty = Callable[..., Tensor]


@torch.no_grad()
def build(
    file: GgufFile,
    config: Any,
    dtype: torch.dtype,
    places: Mapping[str, Any],
    *,
    as_stored: bool = False,
) -> Any:
    """The transformers model with the weights of `file`, its modules on the devices of `places`.

    `as_stored`: weights say how their levels are read, for products that multiply by these.
    """
    import_for_good("transformers.modeling_utils")
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights():  # what is computed, not stored, gets its values all the same
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    held = _held(model)
    stored = _by_weight(file, model, held)
    with file.path.open("rb") as stream:
        for name, unfilled in held.items():
            kind = dtype if isinstance(unfilled, nn.Parameter) else unfilled.dtype
            place = _place(name, places)
            stays = torch.device(place).type == "cpu" and not as_stored
            empty = room_for_weight if stays else torch.empty
            tensor = _weight(stream, file, stored[name], config, kind, empty)
            if tensor.shape != unfilled.shape:
                raise ConfigError(
                    f"{file.path}: {stored[name][0].name} has shape {tuple(tensor.shape)}, its "
                    f"header asks for {tuple(unfilled.shape)}; fetch it again"
                )
            _put(model, name, tensor.to(place))
            if as_stored and len(stored[name]) == 1:
                _keep_levels(model, name, file, stored[name][0])
    model.tie_weights()
    model.config.name_or_path = str(file.path)
    for name, place in places.items():
        model.get_submodule(name).to(place)
    return model.eval()


def _held(model: Any) -> dict[str, Tensor]:
    """The parameters of a model, and the buffers that are saved with them."""
    buffers, saved = dict(model.named_buffers()), model.state_dict()
    return {**dict(model.named_parameters()), **{n: b for n, b in buffers.items() if n in saved}}


def _put(model: Any, name: str, tensor: Tensor) -> None:
    """Give a parameter or a buffer its numbers."""
    path, _, leaf = name.rpartition(".")
    owner: nn.Module = model.get_submodule(path)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(tensor)
    else:
        owner._buffers[leaf] = tensor


def _keep_levels(model: Any, name: str, file: GgufFile, stored: StoredTensor) -> None:
    """Note how the levels of a matrix are read, if it has any and lies as transformers has it."""
    change = _change(file.architecture, stored.name)
    if not has_levels(stored) or not (change is None or change in OF_ROWS):
        return

    def reading() -> Levels:
        levels = read_levels(file.path, stored)
        return levels if change is None else levels.by_rows(lambda part: change(part, model.config))

    keep(model.get_parameter(name), reading)


def _place(name: str, places: Mapping[str, Any]) -> Any:
    """The device of a weight: that of the smallest part that it belongs to."""
    part = name
    while part not in places:
        part = part.rpartition(".")[0]
    return places[part]


def _by_weight(file: GgufFile, model: Any, weights: Iterable[str]) -> dict[str, list[StoredTensor]]:
    """The stored tensors of each weight; none may be missing, none may be left."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == file.architecture)
    names = get_tensor_name_map(arch, model.config.num_hidden_layers)
    wanted = {name: _stored_names(file, name, names) for name in weights}
    missing = [own for each in wanted.values() for own in each if own not in file.tensors]
    if missing:
        raise ConfigError(
            f"{file.path} lacks {len(missing)} tensors, first {missing[0]}; fetch it again"
        )
    used = {own for each in wanted.values() for own in each}
    left = file.tensors.keys() - used - {FACTORS, LONG, SHORT} - _unread(model.config)
    if left:
        raise UnsupportedModel(
            f"{file.path} holds {len(left)} tensors that a {model.config.model_type} model has no "
            f"place for, first {min(left)}"
        )
    return {name: [file.tensors[own] for own in each] for name, each in wanted.items()}


def _unread(config: Any) -> set[str]:
    """Keys and values of layers that look at those of others, which files may hold all the same."""
    n, shared = config.num_hidden_layers, getattr(config, "num_kv_shared_layers", 0)
    parts = ("attn_k", "attn_k_norm", "attn_v")
    return {f"blk.{i}.{part}.weight" for i in range(n - shared, n) for part in parts}


def _stored_names(file: GgufFile, weight: str, names: Any) -> list[str]:
    """The names in a file of what a weight is made of: one tensor, or two that are joined."""
    for own, of in SCALES.items():
        if weight.endswith(own):
            return [f"{names.get_name(weight.removesuffix(own) + of)}.scale"]
    name, suffix = weight, ""
    if ".experts." in weight or weight.endswith(BARE):  # they lack the suffix of modules
        name, suffix = weight.removesuffix("_bias"), ".bias" if "_bias" in weight else ".weight"
    # BLOOM's names are known without what its layers stand in.
    known = (names.get_name(n, (".weight", ".bias")) for n in (name, name.partition(".")[2]))
    found = next((n for n in known if n is not None), None)
    if f".experts.{JOINED}" in name and (found is None or found + suffix not in file.tensors):
        down = names.get_name(name.replace(JOINED, "down_proj"))
        return [f"{down}{suffix}".replace("_down_", f"_{half}_") for half in HALVES]
    return [weight if found is None else found + suffix]


def _weight(
    stream: BinaryIO,
    file: GgufFile,
    stored: list[StoredTensor],
    config: Any,
    dtype: torch.dtype,
    empty: Empty,
) -> Tensor:
    """A weight as transformers has it."""
    change = _change(file.architecture, stored[0].name)
    if change is None and len(stored) == 1:
        return _numbers(stream, stored[0], dtype, empty)
    # What is changed is changed before it is rounded.
    kept = dtype if change is None else torch.float32
    tensors = [_numbers(stream, each, kept) for each in stored]
    if len(tensors) > 1 and file.architecture in ALTERNATING:
        tensor = torch.stack(tensors, dim=2).flatten(1, 2)
    elif len(tensors) > 1:
        tensor = torch.cat(tensors, dim=1)
    else:
        (tensor,) = tensors
    if change is None:
        return tensor
    changed = change(tensor, config)
    return empty(changed.shape, dtype=dtype).copy_(changed)


def _numbers(
    stream: BinaryIO, stored: StoredTensor, dtype: torch.dtype, empty: Empty = torch.empty
) -> Tensor:
    """The numbers of a stored tensor."""
    tensor = empty(stored.shape, dtype=dtype)
    rows = tensor.view(-1, stored.shape[-1])
    at = 0
    for piece in pieces(stream, stored):
        rows[at : at + len(piece)] = piece
        at += len(piece)
    return tensor


# What llama.cpp changes, undone


def _change(architecture: str, name: str) -> Change | None:
    """The change to undo in a tensor of a family, by a part of its name."""
    changes = CHANGES.get(architecture, {})
    return next((change for part, change in changes.items() if part in name), None)


def _paired(heads: str) -> Change:
    """Halves of a head side by side again: stored are the pairs that are rotated together."""

    def change(tensor: Tensor, config: Any) -> Tensor:
        n_heads = getattr(config, heads)
        split = tensor.reshape(n_heads, -1, 2, *tensor.shape[1:])
        return split.transpose(1, 2).reshape(tensor.shape)

    return change


def _less_one(tensor: Tensor, config: Any) -> Tensor:
    """Scales of norms that transformers adds one to."""
    return tensor - 1


def _turned(tensor: Tensor, config: Any) -> Tensor:
    """Products that hold their weights the other way round."""
    return tensor.T


def _by_head(tensor: Tensor, config: Any) -> Tensor:
    """Queries, keys and values of each head together again."""
    heads = config.num_attention_heads
    split = tensor.reshape(3, heads, -1, *tensor.shape[1:])
    return split.transpose(0, 1).reshape(tensor.shape)


def _by_group(tensor: Tensor, config: Any) -> Tensor:
    """Queries of the heads that share a key, that key and its value together again."""
    several = config.new_decoder_architecture or not config.multi_query
    groups, heads = config.num_kv_heads if several else 1, config.num_attention_heads
    sizes = [heads * config.head_dim, *[groups * config.head_dim] * 2]
    parts = [part.reshape(groups, -1, *part.shape[1:]) for part in torch.split(tensor, sizes)]
    return torch.cat(parts, dim=1).reshape(tensor.shape)


def _turned_by_expert(tensor: Tensor, config: Any) -> Tensor:
    """Products of all experts that hold their weights the other way round."""
    return tensor.transpose(1, 2)


def _with_channel(tensor: Tensor, config: Any) -> Tensor:
    """Convolutions, whose middle size of one is left out in files."""
    return tensor.unsqueeze(1)


def _as_row(tensor: Tensor, config: Any) -> Tensor:
    """Products with one output, whose first size is left out in files."""
    return tensor.unsqueeze(0) if tensor.ndim == 1 else tensor


def _logs_of_decays(tensor: Tensor, config: Any) -> Tensor:
    """Logarithms of how fast states fade: stored is the fading itself, below zero."""
    return tensor.neg().log()


QUERIES, KEYS = _paired("num_attention_heads"), _paired("num_key_value_heads")
# Changes of no more than the order of a matrix's rows.
OF_ROWS = (QUERIES, KEYS, _by_head, _by_group)
CHANGES: Mapping[str, Mapping[str, Change]] = {
    "llama": {".attn_q.": QUERIES, ".attn_k.": KEYS},
    "gemma2": {"norm.weight": _less_one},
    "gemma3": {"norm.weight": _less_one},
    "gpt2": dict.fromkeys(
        (".attn_qkv.weight", ".attn_output.weight", ".ffn_up.weight", ".ffn_down.weight"), _turned
    ),
    "gptneox": {".attn_qkv.": _by_head},
    "bloom": {".attn_qkv.": _by_head},
    "falcon": {".attn_qkv.": _by_group},
    "nemotron": {"norm.weight": _less_one},
    "qwen2moe": {".ffn_gate_inp_shexp.": _as_row},
    "gpt-oss": dict.fromkeys((".ffn_gate_exps.weight", ".ffn_down_exps.weight"), _turned_by_expert),
    "lfm2": {".shortconv.conv.": _with_channel},
    "mamba": {".ssm_conv1d.weight": _with_channel, ".ssm_a": _logs_of_decays},
}
