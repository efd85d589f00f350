"""Commands that train, and what they log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SMALL = ["--sequence", "16", "--batch-size", "4", "--learning-rate", "1e-3", "--split-by", "file"]
LAYERSKIP = ["train", "layerskip", "--model", "./model", "--text", "text.txt", *SMALL]
LAYERSKIP += ["--rotation", "3", "--p-max", "0.3", "--checkpoint-every", "4"]


def blocks(batch: int = 4, length: int = 17) -> torch.Tensor:
    return torch.randint(3, 96, (batch, length), generator=torch.Generator().manual_seed(3))


def log(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "train.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_s"} for line in lines]
