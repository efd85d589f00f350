"""Rows behind a text: compiled, one artefact serves every layer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from ppdbench.engine.shapes import parse
from ppdbench.training.context import LaterContext, read_text
from ppdbench.training.layers import TrainedLayers
from ppdbench.training.prepare import new_model
from tests.training.made import blocks

SHAPE = "layers={},hidden=32,heads=2,vocab=300,context=64"


def graphs(n_layers: int) -> int:
    """How much is compiled for a text and rows behind it."""
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    counters.clear()
    layers = TrainedLayers(new_model(parse(SHAPE.format(n_layers)), 0), 16, compiled=True)
    context, _ = read_text(layers, blocks()[:, :-1])
    step, later = layers.step(16), LaterContext(context)
    hidden = layers.embed(blocks()[:, :-1], step)
    with torch.no_grad():
        for index in range(n_layers):
            hidden = layers.layer(index, hidden, step, cache=later)
    return counters["stats"]["unique_graphs"]


@pytest.mark.filterwarnings("ignore")  # the compiler has some of its own
def test_more_layers_are_not_more_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    few, many = graphs(2), graphs(6)
    assert 0 < few == many


def test_every_layer_keeps_its_own_rows() -> None:
    model = new_model(parse(SHAPE.format(3)), 0)
    layers = TrainedLayers(model, 16)
    context, _ = read_text(layers, blocks()[:, :-1])
    shapes = {kept.keys.shape for kept in context.kept}
    assert shapes == {(4, 2, 16, 16)}
    assert len({float(kept.keys.sum()) for kept in context.kept}) == 3
