"""Eager passes over rows of several sequences: each over its own cache, whatever the family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.joined import JoinedCache, JoinedStep, slices
from ppdbench.engine.masks import Step, StepMaker
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from tests.families import FAMILIES
from tests.helpers import assert_near, prefilled, staged, tokens

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


def test_slices_lie_one_behind_another() -> None:
    assert slices([2, 0, 3]) == [slice(0, 2), slice(2, 2), slice(2, 5)]
