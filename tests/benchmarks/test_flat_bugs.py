"""Bugs planted into flat passes: each changes what comes out, and is gone afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.flat_bugs import FLAT_BUGS
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.staged import StagedModel
from tests.helpers import tokens


@torch.inference_mode()
def states(model: StagedModel) -> Tensor:
    """The states of a tree behind a chain, both behind a prompt."""
    ids = torch.tensor([tokens(12)])
    cache, steps = model.new_cache(14)
    model.forward(ids[:, :5], steps.prefill(5), cache)
    chain = model.forward(ids[:, 5:8], steps.chain(5, 3), cache)
    tree = model.forward(ids[:, 8:], steps.tree(8, [-1, 0, 0, 1]), cache)
    return torch.cat([chain, tree], dim=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bug_changes_every_row_and_is_gone_afterwards(dtype: str) -> None:
    spec = ModelSpec(name="synthetic:layers=3,hidden=32,heads=2,vocab=300", dtype=dtype)
    model = load(spec, passes=FLAT).staged
    assert model.flat is not None, model.path.words
    good = states(model)
    for name, plant in FLAT_BUGS.items():
        with plant(model.flat):
            bad = states(model)
        assert bool((bad != good).any(-1).all()), name
        assert torch.equal(states(model), good), name
