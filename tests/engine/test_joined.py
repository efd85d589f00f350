"""Eager passes over rows of several sequences: each over its own cache, whatever the family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.joined import JoinedCache, JoinedStep, slices
from ppdbench.engine.masks import Step, StepMaker
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, at_meeting
from tests.families import COMMON, FAMILIES, GROUPED, stock_model
from tests.helpers import CAPACITY, assert_near, plain, prefilled, staged, tokens

PROMPTS = (3, 12, 20)
TREE = (-1, 0, 0, 1)


def steps_of(makers: list[StepMaker]) -> list[Step]:
    """A row, a tree and a chain behind prompts of different lengths."""
    one, two, three = makers
    return [one.chain(PROMPTS[0], 1), two.tree(PROMPTS[1], TREE), three.chain(PROMPTS[2], 2)]


def run(model: StagedModel, hidden: Tensor, step: Step, cache: KVCache | JoinedCache) -> Tensor:
    return model.pass_over(hidden, 0, model.n_layers, step, cache)


@torch.inference_mode()
def both_ways(model: StagedModel) -> tuple[list[Tensor], list[Tensor]]:
    """States of a joined pass by sequence, and of one pass for each."""
    outputs: list[list[Tensor]] = []
    for joined in (True, False):
        held = [prefilled(model, tokens(n, n)) for n in PROMPTS]
        caches, steps = [cache for cache, _ in held], steps_of([maker for _, maker in held])
        hidden = [
            model.embed(torch.tensor([tokens(step.n_query, i)]), step)
            for i, step in enumerate(steps)
        ]
        if joined:
            cache = JoinedCache(caches)
            step = JoinedStep.of(steps, cache)
            out = run(model, torch.cat(hidden, dim=1), step, cache)
            found = [out[:, rows] for rows in step.rows_of_parts]
        else:
            found = list(map(run, [model] * len(steps), hidden, steps, caches))
        outputs.append([*found, *(part for c in caches for i in (0, 3) for part in c.rows(i))])
    return outputs[0], outputs[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_joined_rows_are_those_of_each_sequence_alone(name: str) -> None:
    for ours, alone in zip(*both_ways(staged(name)), strict=True):
        assert_near(ours, alone)


def test_so_they_are_where_blocks_are_skipped() -> None:
    skipped = SkippedModel(staged("llama"), (1,), (1, 2))
    for ours, alone in zip(*both_ways(skipped), strict=True):
        assert_near(ours, alone)


@torch.inference_mode()
def test_nothing_of_a_sequence_that_went_wrong_reaches_another() -> None:
    model = staged("llama")
    outs = []
    for wrong in (1.0, float("nan")):
        held = [prefilled(model, tokens(n, n)) for n in PROMPTS]
        steps, cache = steps_of([m for _, m in held]), JoinedCache([c for c, _ in held])
        step = JoinedStep.of(steps, cache)
        hidden = model.embed(torch.tensor([tokens(step.n_query)]), step)
        hidden[:, 0] *= wrong
        outs.append(run(model, hidden, step, cache))
    assert bool(outs[1][:, 0].isnan().all())
    assert torch.equal(outs[0][:, 1:], outs[1][:, 1:])


# Layers that are told how far rows are apart, and layers that expand what the cache holds.
OTHERS = {
    "bloom": ("bloom", {**COMMON, "n_layer": 4, "n_head": 4}),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **GROUPED,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "v_head_dim": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
        },
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_layers_that_cannot_tell_sequences_apart_fail_on_them_and_run_apart(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, name, OTHERS[name])
    model = StagedModel(stock_model(name))
    with pytest.raises((RuntimeError, ValueError)):
        both_ways(model)
    place = MeetingPlace()
    twin, found = at_meeting(model, place), list[Tensor]()

    def work() -> None:
        session = Session(twin, CAPACITY)
        session.reset(tokens(7))
        session.prefill()
        found.append(session.advance(session.ids([5])))

    place.invite(work)
    place.invite(work)
    while not place.is_over:
        place.advance()
    assert place.unjoined == {twin: model.adapter.why_not_joined()}
    assert_near(found[0][:, -1], model.logits(plain(model, [*tokens(7), 5]))[:, -1])
    assert torch.equal(found[0], found[1])


def test_a_layer_that_ignores_its_mask_is_refused() -> None:
    model = staged("llama")
    held = [prefilled(model, tokens(n, n)) for n in PROMPTS]
    cache = JoinedCache([c for c, _ in held])
    step = JoinedStep.of(steps_of([maker for _, maker in held]), cache)
    cache.begin(step, 0, 1)
    shape = model.cache_shape
    rows = torch.zeros(1, shape.n_heads, step.n_query, shape.head_dim)
    cache.update(rows, rows, 0)
    with pytest.raises(ValueError, match="without the mask"):
        cache.check_attended()
    with pytest.raises(ValueError, match="change between the cache and attention"):
        cache.attended(rows.clone(), rows)


def test_slices_lie_one_behind_another() -> None:
    assert slices([2, 0, 3]) == [slice(0, 2), slice(2, 2), slice(2, 5)]
