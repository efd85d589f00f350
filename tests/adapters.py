"""LoRA adapters as PEFT saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

RANK, ALPHA = 3, 12
ROOT = "base_model.model."  # what PEFT puts before the names of modules


def factors(inputs: int, outputs: int, rank: int = RANK) -> tuple[Tensor, Tensor]:
    """A and B as a training might have left them."""
    return torch.randn(rank, inputs) * 0.2, torch.randn(outputs, rank) * 0.2


def for_module(path: str, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """The tensors of one adapted module."""
    return {f"{path}.lora_A.weight": a, f"{path}.lora_B.weight": b}


def adapter(folder: Path, tensors: dict[str, Tensor], **settings: Any) -> Path:
    """An adapter folder."""
    folder.mkdir(exist_ok=True)
    usual = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["x"]}
    (folder / "adapter_config.json").write_text(json.dumps({**usual, **settings}), "utf-8")
    named = {ROOT + name: tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder
