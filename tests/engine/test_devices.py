"""Layers on several devices: the same numbers, and every move in its place."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import StepMaker
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from tests.devices import CPU, FIRST, ORDER, devices, split
from tests.families import FAMILIES, stock_model
from tests.helpers import CAPACITY, assert_near, go, staged, tokens

every_family = pytest.mark.parametrize("name", FAMILIES)
TREE = [-1, -1, 0, 0, 1, 1]


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    with devices(), torch.inference_mode():
        yield


@functools.cache
def whole(name: str) -> StagedModel:
    return StagedModel(stock_model(name), packed=False)


def test_a_missing_move_raises() -> None:
    with pytest.raises(RuntimeError, match="over tensors on cpu, meta:1"):
        torch.ones(2, device=FIRST) + torch.ones(2)


def filled(model: StagedModel, ids: list[int]) -> tuple[KVCache, StepMaker]:
    cache, steps = model.new_cache(CAPACITY)
    go(model, ids, steps.chain(0, len(ids)), cache)
    return cache, steps


@every_family
def test_prompts_chains_and_trees_give_the_logits_of_one_device(name: str) -> None:
    logits: list[list[Tensor]] = []
    for model in (split(name), whole(name)):
        cache, steps = filled(model, tokens(13))
        one = go(model, tokens(1, 1), steps.chain(13, 1), cache)
        several = go(model, tokens(3, 2), steps.chain(14, 3), cache)
        tree = go(model, tokens(6, 3), steps.tree(17, TREE), cache)
        cache.keep(17, [1, 5])
        after = go(model, tokens(1, 4), steps.chain(19, 1), cache)
        logits.append([model.logits(hidden) for hidden in (one, several, tree, after)])
    for ours, theirs in zip(*logits, strict=True):
        assert ours.device == CPU
        assert_near(ours, theirs)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_keys_and_values_lie_where_their_layer_does(name: str) -> None:
    cache, _ = filled(split(name), tokens(9))
    for layer, device in enumerate(ORDER):
        assert {part.device for part in cache.blocks(layer)} == {device}


@pytest.mark.parametrize("name", ["llama", "gemma3", "opt"])
def test_passes_of_one_fixed_shape_run_over_several_devices(name: str) -> None:
    found = []
    for model in (split(name), whole(name)):
        session = Session(model, CAPACITY, fixed_rows=4)
        session.reset(tokens(9))
        session.prefill()
        found.append(session.logits(session.forward(session.ids(tokens(2, 1)))))
    assert_near(*found)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_what_leaves_a_model_is_where_its_tokens_enter(name: str) -> None:
    model = split(name)
    cache, steps = model.new_cache(CAPACITY)
    step = steps.chain(0, 5)
    seen: list[Tensor] = []
    hidden = model.embed(torch.tensor([tokens(5)]), step)
    for first, last in ((0, 2), (2, 4)):
        hidden = model.run(hidden, first, last, step, cache, tap=lambda _, out: seen.append(out))
        seen.append(hidden)
    assert {out.device for out in seen} == {CPU}


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_a_model_without_some_blocks_runs_over_several_devices(name: str) -> None:
    found = []
    for model in (split(name), whole(name)):
        session = Session(model, CAPACITY)
        session.reset(tokens(9))
        session.prefill()
        light = SkippedModel(model, attention={1, 2}, mlp={2, 3}).over(session)
        found.append(light.logits(light.forward(light.ids(tokens(1, 1)))))
    assert_near(*found)


def test_a_step_is_moved_to_a_device_once() -> None:
    _, steps = staged("llama").new_cache(CAPACITY)
    step = steps.tree(9, TREE)
    assert step.on(FIRST) is step.on(FIRST)
    assert step.on(CPU) is step
