"""A trained network of EAGLE that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.synthetic import tokenizer
from ppdbench.methods.eagle.plan import EaglePlan
from ppdbench.methods.eagle.train import EagleObjective
from tests.decoding.matrix import free
from tests.families import stock_model
from tests.helpers import staged
from tests.methods.eagle.made import PROMPTS
from tests.training.made import learn


@pytest.fixture(scope="session", params=[1, 3])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Loaded, Path]:
    """A tiny model and a network of each version that learnt its own outputs."""
    folder = tmp_path_factory.mktemp("trained")
    stock = stock_model("llama")
    texts = [[*prompt, *free(staged("llama"), prompt, 36)] for prompt in PROMPTS]
    plan = EaglePlan(version=request.param, passes=3, loss="ce")
    objective = EagleObjective(stock, plan, 44, 0)
    learn(objective, torch.tensor(texts), 60)
    words = tokenizer(300, 96)
    objective.save(folder, words, None)
    return take_over(ModelSpec(name="tiny"), stock, words), folder
