"""Flat layers that look at rows of others, of sizes of their own, and at inputs of their own."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, at_meeting
from tests.engine.tiny_models import (
    CAPACITY,
    PROMPT,
    forward,
    prefilled,
    refuse_rows_of_another_process,
    whole_pass,
)
from tests.helpers import assert_near, tokens

pytestmark = pytest.mark.usefixtures("inferring")

FAMILIES = ("gemma4_text", "gemma4_unified_text")


@pytest.fixture(params=FAMILIES)
def stock(request: pytest.FixtureRequest) -> Any:
    """A model whose layers scale the stream, each in its own way."""
    made = tiny(request.param)
    for layer, scalar in zip(made.model.layers, (0.5, 1.25, 0.75, 1.5), strict=True):
        layer.layer_scalar.fill_(scalar)
    return made


@pytest.fixture
def model(stock: Any) -> StagedModel:
    made = StagedModel(copy.deepcopy(stock), passes=FLAT)
    assert made.flat is not None, made.path.why
    return made


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_layers_above_a_cut_look_at_rows_that_those_below_it_wrote(
    stock: Any, model: StagedModel, cut: int
) -> None:
    session, rows, below = prefilled(model), [31, 77, 40], []
    for row, token in enumerate(rows, start=len(PROMPT)):  # below the cut one by one
        step = session.chain(1, row)
        below.append(session.run(session.embed(session.ids([token]), step), 0, cut, step))
    step = session.chain(len(rows), len(PROMPT))
    found = session.logits(session.run(torch.cat(below, dim=1), cut, 4, step))
    assert_near(found, whole_pass(stock, [*PROMPT, *rows], 3))
    session.cache.truncate(len(PROMPT))
    assert torch.equal(found, forward(session, rows))


def test_keys_and_values_that_others_look_at_are_made_where_attention_is_left_out(
    stock: Any, model: StagedModel
) -> None:
    skipped = SkippedModel(model, {0, 1, 2}, {1})
    assert skipped.flat is not None
    emptied = copy.deepcopy(stock)
    for i in (0, 1, 2):
        emptied.model.layers[i].self_attn.o_proj.weight.zero_()
    emptied.model.layers[1].mlp.down_proj.weight.zero_()
    assert_near(prefilled(skipped).prefill(), whole_pass(emptied, PROMPT, 1))
    session = prefilled(model)
    view = skipped.over(session)
    drafted = [view.logits(view.forward(view.ids([31]), view.chain(1, len(PROMPT))))]
    session.cache.truncate(len(PROMPT))
    drafted.append(view.logits(view.forward(view.ids([31, 8]), view.chain(2, len(PROMPT)))))
    assert torch.equal(drafted[0], drafted[1][:, :1])
    session.cache.truncate(len(PROMPT))
    assert_near(forward(session, [31, 9]), whole_pass(stock, [*PROMPT, 31, 9], 2))


def test_layers_whose_rows_another_process_would_hold_are_refused(model: StagedModel) -> None:
    refuse_rows_of_another_process(model)


def test_rows_that_stay_behind_a_tree_are_gone_on_from(stock: Any, model: StagedModel) -> None:
    session = prefilled(model)
    step = session.tree([-1, -1, 0, 1])
    found = session.logits(session.forward(session.ids([31, 77, 40, 3]), step))
    assert_near(found[:, [1, 3]], whole_pass(stock, [*PROMPT, 77, 3], 2))
    session.cache.keep(len(PROMPT), [1, 3])
    assert_near(forward(session, [8]), whole_pass(stock, [*PROMPT, 77, 3, 8], 1))


def test_sequences_that_meet_give_bit_for_bit_what_each_gives_alone(model: StagedModel) -> None:
    place, found = MeetingPlace(), dict[int, Tensor]()
    twin = at_meeting(model, place)

    def of_text(one: StagedModel, seed: int) -> Tensor:
        session = Session(one, CAPACITY, spare=8)
        session.reset(tokens(9 + seed, seed))
        session.prefill()
        return forward(session, [31, 77, 40][seed:])

    def work(seed: int) -> None:
        found[seed] = of_text(twin, seed)

    for seed in (0, 1, 2):
        place.invite(partial(work, seed))
    while not place.is_over:
        place.advance()
    assert not place.unjoined
    assert all(torch.equal(found[seed], of_text(model, seed)) for seed in (0, 1, 2))
