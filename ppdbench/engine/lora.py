"""LoRA adapters as PEFT saves them, merged into the weights of a model that was loaded.

An adapter is a folder with `adapter_config.json` and `adapter_model.safetensors`. A matrix W that
it adapts becomes W + scale * B A; with DoRA every row of that sum then gets the length that was
trained for it. Tensors of other names were trained whole and take the place of the model's.
Whatever else a configuration asks for would change the sum, so it is refused.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.families import transposed
from ppdbench.engine.folders import ADAPTER, check_tensors
from ppdbench.engine.text_part import place_of
from ppdbench.engine.weights import is_plain
from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_json
from ppdbench.files.keys import Keys, kind

TENSORS = "adapter_model.safetensors"
# A tensor's name: the module that it is for, and what it is to that.
NAME = re.compile(
    r"base_model\.model\.(?P<module>.+?)(\.base_layer)?\.(?:"
    r"(?P<down>lora_A\.weight|lora_embedding_A)|(?P<up>lora_B\.weight|lora_embedding_B)|"
    r"(?P<lengths>lora_magnitude_vector(\.weight)?)|(?P<whole>weight|bias))"
)
READ = {
    *("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"),
    "init_lora_weights",
}
# Settings that say what was trained, how and by whom; the sum is the same whatever they are.
WITHOUT_INFLUENCE = {
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode"),
    *("peft_version", "target_modules", "exclude_modules", "lora_dropout", "bias"),
    *("modules_to_save", "layers_to_transform", "layers_pattern", "runtime_config"),
    *("megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config"),
    *("lora_ga_config", "qalora_group_size"),
    "fan_in_fan_out",  # modules themselves tell which way round they hold their weights
}
# Ways to begin a training that leave the model's own weights as they were.
BEGINNINGS = ("True", "False", "None", "gaussian", "eva", "orthogonal")
WAY_OUT = "merge it with peft (merge_and_unload, save_pretrained) and give --model the result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """An adapter as its files describe it."""

    folder: Path
    rank: int
    alpha: float
    ranks: Mapping[str, float]
    """Ranks of modules that have another one, by patterns of their names."""
    alphas: Mapping[str, float]
    root_of_rank: bool
    """The sum is scaled by the root of the rank: rsLoRA."""
    lengths: bool
    """Rows have lengths of their own: DoRA."""

    @property
    def file(self) -> Path:
        """The file of its tensors."""
        return self.folder / TENSORS

    def fingerprint(self) -> str:
        """A hash of its tensors and of what scales them."""
        patterns = (*sorted(self.ranks.items()), "|", *sorted(self.alphas.items()))
        scaling = (self.rank, self.alpha, *patterns, self.root_of_rank, self.lengths)
        digest = hashlib.sha256(repr(scaling).encode())
        with self.file.open("rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()[:16]

    def rank_of(self, module: str) -> int:
        """The rank that the sum for a module has."""
        return int(_matched(module, self.ranks, self.rank))

    def scale(self, module: str) -> float:
        """The factor of what is added to a module's weights."""
        rank = self.rank_of(module)
        alpha = _matched(module, self.alphas, self.alpha)
        return alpha / (math.sqrt(rank) if self.root_of_rank else rank)

    def error(self, why: str) -> ConfigError:
        """A complaint about this adapter."""
        return ConfigError(f"adapter {self.folder}: {why}")


def _matched(module: str, patterns: Mapping[str, float], usual: float) -> float:
    """The value of the first pattern that is a module's name, or the end of it after a dot."""
    found = (v for pattern, v in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
    return next(found, usual)


def read(folder: Path) -> Lora:
    """The adapter in a folder, refused as far as its files alone tell what is wrong."""
    if not folder.is_dir():
        raise ConfigError(f"--adapter {folder} is no folder; give one that holds {ADAPTER}")
    content = read_json(folder / ADAPTER, "adapter", f"give --adapter a folder with {ADAPTER}")
    if not isinstance(content, dict):
        raise ConfigError(f"adapter {folder / ADAPTER} must be an object, not {kind(content)}")
    keys = Keys(content, f"adapter {folder / ADAPTER}")
    _check_kind(keys, content)
    lora = Lora(
        folder=folder,
        rank=keys.number("r"),
        alpha=keys.real("lora_alpha"),
        ranks=_patterns(keys, content, "rank_pattern"),
        alphas=_patterns(keys, content, "alpha_pattern"),
        root_of_rank=keys.flag("use_rslora", False),
        lengths=keys.flag("use_dora", False),
    )
    if min([lora.rank, *lora.ranks.values()]) < 1:
        raise keys.error("a rank is below 1; use whole numbers from 1")
    if not lora.file.is_file():
        raise lora.error(f"it holds no {TENSORS}; write one with peft's save_pretrained")
    check_tensors(f"adapter {folder}", lora.file)
    return lora


def _check_kind(keys: Keys, content: Mapping[str, Any]) -> None:
    """Refuse what is no LoRA, and one that is more than a sum."""
    if (own := keys.text("peft_type")) != "LORA":
        raise keys.error(f"peft_type is {own[:40]}, and only LORA is merged here; {WAY_OUT}")
    if str(beginning := content.get("init_lora_weights")) not in BEGINNINGS:
        raise keys.error(
            f"init_lora_weights is {str(beginning)[:40]}, so it was trained beside changed weights "
            f"of the model; {WAY_OUT}"
        )
    for name, value in content.items():
        if value and name not in WITHOUT_INFLUENCE | READ:
            raise keys.error(f"{name[:40]} makes it more than a sum that is known here; {WAY_OUT}")


def _patterns(keys: Keys, content: Mapping[str, Any], name: str) -> dict[str, float]:
    """Numbers by patterns of modules' names."""
    if not content.get(name):
        return {}
    section = keys.section(name)
    found = {pattern: section.real(pattern) for pattern in section.names()}
    try:
        re.compile("|".join(f"({pattern})" for pattern in found))
    except re.error as error:
        raise keys.error(f"{name} holds what is no pattern ({error})") from error
    return found


@dataclass(slots=True)
class _Change:
    """The tensors of an adapter that are for one module."""

    module: nn.Module
    down: Tensor | None = None
    up: Tensor | None = None
    lengths: Tensor | None = None


@torch.no_grad()
def merge(model: Any, lora: Lora) -> int:
    """Change the weights of a loaded model as its adapter says.

    Of a model for text and more it may change parts that are not there, because a text never passes
    them; returns the number of such modules.
    """
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    places = _Places(model, lora)
    changes: dict[str, _Change] = {}
    for name, tensor in _tensors(lora).items():
        match = NAME.fullmatch(name)
        path = "" if match is None else match["module"]
        module = places.find(path, name)
        if match is None or module is None:
            continue
        if (whole := match["whole"]) is not None:
            _replace(module, whole, tensor, f"{path}.{whole}", lora)
        else:
            part = next(part for part in ("down", "up", "lengths") if match[part] is not None)
            setattr(changes.setdefault(path, _Change(module)), part, tensor)
    for path, change in changes.items():
        module = change.module
        _replace(module, "weight", _sum(module, path, change, lora), f"{path}.weight", lora)
    if tied and model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        _untie(model)
    return places.count_left_out()


class _Places:
    """The modules of a model by the names that an adapter has for them."""

    def __init__(self, model: Any, lora: Lora) -> None:
        self._modules: dict[str, nn.Module] = dict(model.named_modules())
        self._in_whole, self._lora = place_of(model), lora
        self._found, self._left_out = set[str](), set[str]()

    def find(self, path: str, name: str) -> nn.Module | None:
        """The module that is meant; None for one of a part that a text never passes."""
        own: str | None = path
        if path not in self._modules and self._in_whole is not None:
            with suppress(KeyError):
                own = self._in_whole.within(path)
        if own is None:
            self._left_out.add(path)
            return None
        if not path or own not in self._modules:
            raise self._lora.error(
                f"{name[:120]} fits no part of this model; give the model that it was trained for"
            )
        self._found.add(path)
        return self._modules[own]

    def count_left_out(self) -> int:
        """Count the modules that were left out; all of them is too many."""
        if self._left_out and not self._found:
            raise self._lora.error(
                "it changes nothing of the part that writes text, which alone runs here; leave "
                "--adapter out"
            )
        return len(self._left_out)


def _tensors(lora: Lora) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(lora.file)
    except (SafetensorError, OSError, KeyError) as error:
        raise lora.error(f"{TENSORS} cannot be read: {' '.join(str(error).split())}") from error
    return tensors


def _replace(module: nn.Module, name: str, tensor: Tensor, path: str, lora: Lora) -> None:
    """Give one module new numbers; others that shared the old ones keep those, as in PEFT."""
    held = _held(module, name, path, lora)
    if held.shape != tensor.shape:
        raise lora.error(
            f"{path} has shape {list(tensor.shape)} there and {list(held.shape)} in this model; "
            "give the model that it was trained for"
        )
    new = tensor.to(held.device, held.dtype)
    module.register_parameter(name, nn.Parameter(new, requires_grad=held.requires_grad))


def _held(module: nn.Module, name: str, path: str, lora: Lora) -> nn.Parameter:
    held = module._parameters.get(name)
    if held is None:
        raise lora.error(f"{path} is no weight of this model; give the one it was trained for")
    if not is_plain(held) or not held.is_floating_point():
        raise lora.error(f"{path} is stored in fewer bits, which nothing is added to; {WAY_OUT}")
    if held.is_meta:
        raise lora.error(f"{path} stays in its file; leave --device-map out or raise --max-memory")
    return held


def _sum(module: nn.Module, path: str, change: _Change, lora: Lora) -> Tensor:
    """The weights of a module with what was trained beside them."""
    down, up, scale = change.down, change.up, lora.scale(path)
    if down is None or up is None:
        raise lora.error(f"{path} has one of its two factors only; fetch the adapter again")
    if (change.lengths is not None) != lora.lengths:
        raise lora.error(
            f"use_dora is {lora.lengths}, which its tensors for {path} are not made for"
        )
    held = _held(module, "weight", f"{path}.weight", lora)
    turned = transposed(module) or isinstance(module, nn.Embedding)
    weight = held.t() if turned else held  # [out, in]
    rank = lora.rank_of(path)
    if held.dim() != 2 or (*down.shape, *up.shape) != (rank, weight.shape[1], len(weight), rank):
        raise lora.error(
            f"{path}: factors of shapes {list(up.shape)} and {list(down.shape)} and rank {rank} do "
            f"not fit weights {list(held.shape)}; give the model that it was trained for"
        )
    wide = torch.promote_types(held.dtype, torch.float32)
    up, down = up.to(held.device, wide), down.to(held.device, wide)
    summed = weight.to(wide) + scale * (up @ down)
    if change.lengths is not None:
        lengths = change.lengths.to(held.device, wide).reshape(-1, 1)
        if len(lengths) != len(summed):
            raise lora.error(f"{path} has {len(lengths)} lengths for {len(summed)} rows")
        summed *= lengths / torch.linalg.norm(summed, dim=1, keepdim=True)
    return (summed.t() if turned else summed).contiguous()


def _untie(model: Any) -> None:
    """Say that embedding and head are two by now, so that both are saved."""
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config.tie_word_embeddings = False
