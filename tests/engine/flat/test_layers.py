"""Layers of every family, written as operations, against the same layers run eagerly."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from benchmarks.families import tiny
from ppdbench.engine.flat.activations import activation_of
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.layers import LayerWriter
from ppdbench.engine.flat.understood import NotUnderstoodError
from ppdbench.engine.masks import TrainedRows
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, eager
from tests import flat_ops
from tests.engine.flat.made import made, outputs
from tests.families import FAMILIES
from tests.helpers import CAPACITY, assert_near, tokens


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    flat_ops.stand_in(monkeypatch)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_what_it_gives_eagerly(name: str) -> None:
    model = made(name)
    with eager(model):
        truth = outputs(model)
    for ours, expected in zip(outputs(model), truth, strict=True):
        assert_near(ours, expected)


@torch.inference_mode()
def test_trained_keys_and_values_stand_in_for_those_of_their_rows() -> None:
    model = made("llama")
    shape = model.cache_shape
    given = TrainedRows(*torch.randn(2, shape.n_layers, shape.n_heads, 1, shape.head_dim), first=1)
    found = []
    for _ in range(2):
        session = Session(model, CAPACITY)
        session.reset(tokens(5))
        session.prefill()
        step = session.tree((-1, 0, 1))
        step.given = (given,)
        found.append(session.forward(session.ids([4, 5, 6]), step))
        if len(found) == 1:
            model.flat = None
    assert_near(*found)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_models_that_lack_blocks_run_flat_too(name: str) -> None:
    model = made(name)
    with eager(model):
        plainly = SkippedModel(model, {1, 2}, {2, 3})
    skipping = SkippedModel(model, {1, 2}, {2, 3})
    assert skipping.flat is not None
    found = []
    for one in (skipping, plainly):
        session = Session(model, CAPACITY)
        session.reset(tokens(6))
        session.prefill()
        if one is plainly:
            model.flat = None
        found.append(one.over(session).advance(session.ids([4])))
    assert_near(*found)


def test_a_readout_without_what_stands_before_the_head_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert StagedModel(tiny("modernbert-decoder"), passes=FLAT).flat is not None
    monkeypatch.setattr(LayerWriter, "_transformed", lambda _, __, states: states)
    model = StagedModel(tiny("modernbert-decoder"), passes=FLAT)
    assert model.flat is None
    assert "the readout is off by" in model.path.why


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *(("silu", "silu"), ("swish", "silu"), ("gelu", "gelu"), ("relu", "relu")),
        *(("gelu_new", "gelu_tanh"), ("gelu_fast", "gelu_tanh"), ("relu2", "relu2")),
        *(("gelu_pytorch_tanh", "gelu_tanh"), ("sigmoid", "sigmoid")),
        # The same as others up to a limit.
        *(("relu6", None), ("gelu_10", None), ("quick_gelu", None)),
    ],
)
def test_activations_are_known_by_all_that_they_compute(name: str, known: str | None) -> None:
    if known is None:
        with pytest.raises(NotUnderstoodError, match="is not known"):
            activation_of(ACT2FN[name])
    else:
        assert activation_of(ACT2FN[name]) == known
