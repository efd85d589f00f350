"""Layers as they are trained: the model's own loss and gradients, and samples that skip layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from ppdbench.methods.layerskip.recipe import Recipe
from ppdbench.methods.layerskip.train import LayerSkipObjective
from ppdbench.training import layers as training_layers
from tests.families import FAMILIES, stock_model
from tests.training.made import blocks


@pytest.mark.parametrize("name", FAMILIES)
def test_the_training_loss_is_the_models_own(name: str) -> None:
    """No dropout, last exit only: what transformers computes, for every family."""
    stock = stock_model(name)
    rows = blocks()
    truth = copy.deepcopy(stock)(rows, labels=rows).loss.detach()
    plain = Recipe(p_max=0.0, e_scale=None)
    found = LayerSkipObjective(stock, plain, 16, seed=0).eval()(rows, 0, 10)
    assert float(found["loss"].detach()) == pytest.approx(float(truth), rel=1e-5)


def test_prompts_are_left_out_of_the_loss_and_never_read_out() -> None:
    """Loss and gradients are those of transformers with these labels ignored."""
    stock = stock_model("llama")
    rows = blocks()
    marked = rows.clone()
    for number, prompt in enumerate((3, 7, 0, 12)):
        marked[number, :prompt] = ~rows[number, :prompt]
    labels = rows.masked_fill(marked < 0, -100)
    truth = copy.deepcopy(stock)
    told = truth(rows, labels=labels).loss
    told.backward()
    read: list[int] = []
    stock.lm_head.register_forward_hook(lambda _, args, __: read.append(args[0][..., 0].numel()))
    plain = Recipe(p_max=0.0, e_scale=None)
    found = LayerSkipObjective(stock, plain, rows.shape[1], seed=0)(marked, 0, 10)["loss"]
    found.backward()
    assert float(found.detach()) == pytest.approx(float(told.detach()), rel=1e-5)
    for ours, theirs in zip(stock.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert read == [int((labels[:, 1:] >= 0).sum())]


def test_a_batch_of_prompts_alone_teaches_nothing() -> None:
    stock = stock_model("llama")
    recipe = Recipe(p_max=0.0, rotation=1)
    found = LayerSkipObjective(stock, recipe, 16, seed=0)(~blocks(), 0, 10)["loss"]
    found.backward()
    assert float(found.detach()) == 0
    assert all(p.grad is None or not p.grad.any() for p in stock.parameters())


def test_gradients_reach_every_parameter_that_is_used() -> None:
    stock = stock_model("llama").train()
    recipe = Recipe(p_max=0.0, rotation=1)
    LayerSkipObjective(stock, recipe, 16, seed=0)(blocks(), 0, 10)["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in stock.parameters())


def test_dropped_samples_really_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = stock_model("llama").train()
    objective = LayerSkipObjective(stock, Recipe(p_max=0.9, e_scale=None), 16, seed=1)
    sizes: list[tuple[int, int]] = []
    plain = objective.layers.adapter.call_layer

    def counted(index: int, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append((index, len(hidden)))
        return plain(index, hidden, *rest)

    monkeypatch.setattr(objective.layers.adapter, "call_layer", counted)
    for t in range(40):
        objective(blocks(8), t, 40)
    by_layer = {n: [size for index, size in sizes if index == n] for n in range(4)}
    assert by_layer[0] == [8] * 40
    share = sum(by_layer[3]) / (8 * 40)
    assert share == pytest.approx(0.1, abs=0.06)


def test_a_dropped_sample_passes_a_layer_unchanged() -> None:
    layers = training_layers.TrainedLayers(stock_model("llama"), 16)
    step = layers.step(16)
    hidden = layers.embed(blocks()[:, :-1], step)
    out = layers.layer(2, hidden, step, torch.tensor([0, 2]))
    whole = layers.layer(2, hidden, step)
    assert torch.equal(out[[1, 3]], hidden[[1, 3]])
    torch.testing.assert_close(out[[0, 2]], whole[[0, 2]])
    assert torch.equal(layers.layer(2, hidden, step, torch.tensor([], dtype=torch.long)), hidden)


def test_drops_are_the_same_on_every_process_and_off_at_inference() -> None:
    recipe = Recipe(p_max=0.5, e_scale=None)
    draws = []
    for number in range(2):
        objective = LayerSkipObjective(stock_model("llama").train(), recipe, 16, seed=4)
        torch.manual_seed(number)  # what else a process has drawn
        draws.append([float(objective(blocks(), t, 9)["loss"].detach()) for t in range(5)])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 1
    assert objective.eval()(blocks(), 0, 9)["loss"] == objective.eval()(blocks(), 1, 9)["loss"]


def test_every_micro_batch_has_drops_of_its_own() -> None:
    """One sample at a time: in one step some skip a layer, and others do not."""
    recipe = Recipe(p_max=0.6, e_scale=None)
    objective = LayerSkipObjective(stock_model("llama").train(), recipe, 16, seed=4)
    passed: list[int] = []
    layer = objective.layers.layer

    def noted(index: int, hidden: Any, step: Any, kept: Any = None, cache: Any = None) -> Any:
        if index == 3:
            passed.append(len(hidden) if kept is None else len(kept))
        return layer(index, hidden, step, kept, cache)

    objective.layers.layer = noted  # type: ignore[method-assign]
    for row in range(16):
        objective.first_row = row
        objective(blocks(1), 0, 1)
    assert set(passed) == {0, 1}
