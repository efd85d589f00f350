"""Trained prompt tokens that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ppdbench.engine.loading import Loaded
from ppdbench.engine.synthetic import tokenizer
from ppdbench.methods.prompt_tokens.plan import PromptPlan
from ppdbench.methods.prompt_tokens.train import PromptsObjective
from tests.decoding.matrix import known
from tests.families import stock_model
from tests.helpers import tokens
from tests.methods.prompt_tokens.made import staged_with
from tests.training.made import learn


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """A tiny model and prompt tokens that learnt its own outputs after some prompts."""
    folder = tmp_path_factory.mktemp("trained") / "prompts"
    words = tokenizer(300, 96)
    model = staged_with(stock := stock_model("gpt2", vocab_size=300), words)
    heads = [tokens(9, seed) for seed in range(12)]
    texts = torch.tensor([known(model.staged, tuple(prompt))[:45] for prompt in heads])
    objective = PromptsObjective(stock, PromptPlan(), 44, [7, 8, 9], seed=0)
    learn(objective, texts, 60, rate=3e-2)
    objective.save(folder, words)
    return model, folder
