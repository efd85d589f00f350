"""Weights of GPTQ and AWQ checkpoints, made plain: whole numbers in words of 32 bits, and scales.

A weight is its level less the zero of its group, times the scale of its group. Both formats keep
several levels in a word, the lowest bits first, and differ in what lies side by side:

- GPTQ: neighbouring inputs of an output share a word of `qweight` [in / n, out], and neighbouring
  outputs a word of `qzeros` [groups, out / n]. `g_idx` says the group of each input. The first
  version of the format stores zeros less one.
- AWQ: neighbouring outputs of an input share a word of `qweight` [in, out / n] and of `qzeros`, in
  an order of its own. Groups are stretches of inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppdbench.errors import ConfigError, UnsupportedModel

METHODS = ("gptq", "awq")
WORD = 32
PARTS = ("qweight", "qzeros", "scales", "g_idx")
# Of the levels in a word of AWQ, the output that each is of.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Packing:
    """The settings that say how levels are packed."""

    method: str
    bits: int
    group: int
    """Inputs that share a scale; -1: all."""
    less_one: bool = False
    """Zeros are stored less one."""

    @classmethod
    def of(cls, facts: Mapping[str, Any], name: str) -> Packing:
        """Read a model's settings; refuse those that stand for another format."""
        method, bits = str(facts.get("quant_method")), facts.get("bits", facts.get("w_bit"))
        group = facts.get("group_size", facts.get("q_group_size", -1))
        if method == "gptq":
            form = str(facts.get("checkpoint_format") or "gptq").lower()
            is_read = form in ("gptq", "gptq_v2") and bits in (2, 4, 8)
        else:
            form = str(facts.get("version") or "gemm").lower()
            is_read = form == "gemm" and bits == 4 and facts.get("zero_point", True)
        if not is_read or not isinstance(group, int):
            raise UnsupportedModel(
                f"{name} is quantised by {method}, {bits} bits in the form {form}; supported: gptq "
                "and gptq_v2 of 2, 4 or 8 bits, and gemm of AWQ with 4 bits and zeros. Use the "
                "plain model"
            )
        return cls(method, bits, group, less_one=form == "gptq")


def plain_weights(
    files: Sequence[Path], packing: Packing, dtype: torch.dtype, name: str
) -> dict[str, Tensor]:
    """All tensors of a checkpoint by their names, its products made plain in `dtype`."""
    found: dict[str, Tensor] = {}
    packed: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for path, tensor in _tensors(files):
        owner, _, part = path.rpartition(".")
        if part not in PARTS:
            found[path] = tensor
            continue
        parts = packed[owner]
        parts[part] = tensor
        if len(parts) == len(PARTS):
            found[f"{owner}.weight"] = dequantised(parts, packing, owner).to(dtype)
            parts.clear()
    for owner, parts in packed.items():
        if parts:  # some have no list of groups
            found[f"{owner}.weight"] = dequantised(parts, packing, owner).to(dtype)
    if not packed:
        raise ConfigError(
            f"{name} is quantised by {packing.method} as config.json says, but has no safetensors "
            "files with such weights; fetch it again"
        )
    return found


def _tensors(files: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as stored:
            for path in sorted(stored.keys()):
                yield path, stored.get_tensor(path)


def dequantised(parts: Mapping[str, Tensor], packing: Packing, name: str) -> Tensor:
    """The weights [out, in] that the tensors of a product stand for, in float32."""
    lacking = [part for part in PARTS[:3] if part not in parts]
    if lacking:
        raise ConfigError(f"{name} lacks {', '.join(lacking)}; fetch the model again")
    words, zero_words, scales = (parts[part] for part in PARTS[:3])
    zeros = _levels(zero_words, packing)  # [groups, out]
    if packing.method == "gptq":
        levels = _levels(words.T.contiguous(), packing)  # [out, in]
    else:
        levels = _levels(words, packing).T
    if packing.less_one:
        zeros = (zeros + 1) & ((1 << packing.bits) - 1)
    groups = _groups(parts, packing, levels.shape[1])
    sizes = levels.shape[0], int(groups.max()) + 1
    if scales.shape[1] != sizes[0] or zeros.shape != scales.shape or len(scales) < sizes[1]:
        raise ConfigError(
            f"{name} has scales {tuple(scales.shape)} and zeros {tuple(zeros.shape)} for "
            f"{sizes[0]} outputs of {sizes[1]} groups; fetch the model again"
        )
    return (levels - zeros.T[:, groups]).float() * scales.float().T[:, groups]


def _groups(parts: Mapping[str, Tensor], packing: Packing, inputs: int) -> Tensor:
    """The group of each input."""
    if packing.method == "gptq" and "g_idx" in parts:
        return parts["g_idx"].long()
    return torch.arange(inputs) // (inputs if packing.group < 1 else packing.group)


def _levels(words: Tensor, packing: Packing) -> Tensor:
    """Rows of words [row, word] as rows of levels, those of a word side by side."""
    shifts = torch.arange(0, WORD, packing.bits, dtype=torch.int32)
    levels = (words[..., None] >> shifts) & ((1 << packing.bits) - 1)
    if packing.method == "awq":
        levels = levels[..., torch.tensor(AWQ_ORDER).argsort()]
    return levels.flatten(-2)
