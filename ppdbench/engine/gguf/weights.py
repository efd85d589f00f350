"""The weights of a GGUF file in a transformers model, dequantised tensor by tensor.

The `gguf` package says which tensor is which weight and what its numbers are. llama.cpp stores
some of them changed; that is undone here. At no time is there more beside the model than a piece
of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ppdbench.engine.gguf.file import GgufFile, StoredTensor
from ppdbench.engine.gguf.numbers import pieces
from ppdbench.engine.gguf.settings import FACTORS, LONG, SHORT
from ppdbench.errors import ConfigError, UnsupportedModel
from ppdbench.machine.garbage import import_for_good

# How a stored tensor becomes a weight, given the model's configuration.
Change = Callable[[Tensor, Any], Tensor]


@torch.no_grad()
def build(
    file: GgufFile,
    config: Any,
    dtype: torch.dtype,
    places: Mapping[str, Any],
) -> Any:
    """The transformers model with the weights of `file`, its modules on the devices of `places`."""
    import_for_good("transformers.modeling_utils")
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights():  # what is computed, not stored, gets its values all the same
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    stored = _by_weight(file, model)
    with file.path.open("rb") as stream:
        for name, parameter in list(model.named_parameters()):
            tensor = _weight(stream, file, stored[name], config, dtype)
            if tensor.shape != parameter.shape:
                raise ConfigError(
                    f"{file.path}: {stored[name].name} has shape {tuple(tensor.shape)}, its header "
                    f"asks for {tuple(parameter.shape)}; fetch it again"
                )
            owner, _, leaf = name.rpartition(".")
            weight = nn.Parameter(tensor.to(_place(name, places)))
            model.get_submodule(owner)._parameters[leaf] = weight
    model.tie_weights()
    model.config.name_or_path = str(file.path)
    for name, place in places.items():
        model.get_submodule(name).to(place)
    return model.eval()


def _place(name: str, places: Mapping[str, Any]) -> Any:
    """The device of a weight: that of the smallest part that it belongs to."""
    part = name
    while part not in places:
        part = part.rpartition(".")[0]
    return places[part]


def _by_weight(file: GgufFile, model: Any) -> dict[str, StoredTensor]:
    """The stored tensor of each weight; none may be missing, none may be left."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == file.architecture)
    names = get_tensor_name_map(arch, model.config.num_hidden_layers)
    wanted = {
        name: names.get_name(name, (".weight", ".bias")) or name
        for name, _ in model.named_parameters()
    }
    missing = [own for own in wanted.values() if own not in file.tensors]
    if missing:
        raise ConfigError(
            f"{file.path} lacks {len(missing)} tensors, first {missing[0]}; fetch it again"
        )
    left = file.tensors.keys() - set(wanted.values()) - {FACTORS, LONG, SHORT}
    if left:
        raise UnsupportedModel(
            f"{file.path} holds {len(left)} tensors that a {model.config.model_type} model has no "
            f"place for, first {min(left)}"
        )
    return {name: file.tensors[own] for name, own in wanted.items()}


def _weight(
    stream: BinaryIO, file: GgufFile, stored: StoredTensor, config: Any, dtype: torch.dtype
) -> Tensor:
    """A weight as transformers has it."""
    change = _change(file.architecture, stored.name)
    # What is changed is changed before it is rounded.
    tensor = torch.empty(stored.shape, dtype=dtype if change is None else torch.float32)
    rows = tensor.view(-1, stored.shape[-1])
    at = 0
    for piece in pieces(stream, stored):
        rows[at : at + len(piece)] = piece
        at += len(piece)
    return tensor if change is None else change(tensor, config).to(dtype).contiguous()


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


QUERIES, KEYS = _paired("num_attention_heads"), _paired("num_key_value_heads")
CHANGES: Mapping[str, Mapping[str, Change]] = {
    "llama": {".attn_q.": QUERIES, ".attn_k.": KEYS},
    "gemma2": {"norm.weight": _less_one},
    "gemma3": {"norm.weight": _less_one},
    "gpt2": dict.fromkeys(
        (".attn_qkv.weight", ".attn_output.weight", ".ffn_up.weight", ".ffn_down.weight"), _turned
    ),
    "gptneox": {".attn_qkv.": _by_head},
}
