"""Prompt tokens and trees of them, as tests need them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.engine.heads import ExitHead
from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.masks import TrainedRows
from ppdbench.engine.staged import StagedModel
from ppdbench.methods.prompt_tokens.network import Chain, Prompts
from ppdbench.methods.prompt_tokens.strategy import PromptTokensProposer
from ppdbench.trees.choice import ROWS, general
from ppdbench.trees.dynamic import DynamicTree, TreeState, search
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import Case, cases

SOME = {"plain 1", "3 new tokens", "up to the capacity", "eos at 5"}
DYNAMIC = search(general(3), ROWS)
STATIC = DynamicTree.uniform(Tree(((0,), (1,), (0, 0), (0, 1), (0, 0, 0))), 3)
# One prompt token behind unlikely nodes, two or three behind likely ones.
UNEVEN = DynamicTree(
    (
        TreeState(Tree(((0,), (2,))), (3, 2, 1)),
        TreeState(Tree(((0,), (0, 1))), (1, 1, 3)),
        TreeState(Tree(((0,), (1,), (0, 0), (0, 0, 0))), (2, 1, 3, 2, 1)),
    )
)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ensemble": {"chain": Chain(3, 2)},
    "decoder mask": {"chain": Chain(3, 2, "decoder")},
    "encoder mask": {"chain": Chain(3, 2, "encoder")},
    "prefix": {"chain": Chain(3, 2, "encoder", 2)},
    "several exits": {"exits": 3},
    "learned weights": {"chain": Chain(3, 2), "weights": torch.tensor([0.9, -0.3])},
    "custom head": {"head": True},
}


def prompts_of(model: StagedModel, seed: int = 0, **parts: Any) -> Prompts:
    """Untrained prompt tokens, large enough to have opinions."""
    draw = torch.Generator().manual_seed(seed)
    chain, shape = parts.pop("chain", Chain(3)), model.cache_shape

    def some(*size: int) -> Tensor:
        return 0.4 * torch.randn(*size, generator=draw)

    if parts.get("head"):
        parts["head"] = ExitHead(weight=some(model.vocab_size, model.adapter.head_width))
    if chain.prefix:
        size = (shape.n_layers, shape.n_heads, chain.prompts * chain.prefix, shape.head_dim)
        parts["prefix"] = TrainedRows(some(*size), some(*size))
    return Prompts(chain, some(chain.rows(chain.prompts), model.hidden_size), **parts)


def prompted(model: StagedModel, tree: DynamicTree = DYNAMIC, **parts: Any) -> PromptTokensProposer:
    return PromptTokensProposer(prompts_of(model, **parts), tree, model, {})


def some_cases(model: StagedModel) -> Iterator[Case]:
    return (case for case in cases(model) if case.name in SOME)


def staged_with(stock: Any, words: Any) -> Loaded:
    return take_over(ModelSpec(name="tiny"), stock, words, packed=False)


CONFIG = {
    "peft_type": "PROMPT_TUNING",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "somebody/tiny",
    "num_virtual_tokens": 6,
    "num_special_tokens": 3,
    "virtual_tokens_per_special_token": 2,
}


def adapter(folder: Path, kind: str = "safetensors", **changes: Any) -> Path:
    """A folder as PEFT writes it."""
    folder.mkdir(exist_ok=True)
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    embeddings = torch.randn(6, 32, generator=torch.Generator().manual_seed(5))
    if kind == "safetensors":
        save_file({"prompt_embeddings": embeddings}, folder / "adapter_model.safetensors")
    elif kind == "bin":
        torch.save({"prompt_embeddings": embeddings}, folder / "adapter_model.bin")
    return folder


def as_loaded(model: StagedModel) -> Loaded:
    return Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, "")
