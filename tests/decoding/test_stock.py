"""The stock model beside ours: loaded once, over our weights, with nothing of its own settings."""

from __future__ import annotations

import pytest
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.stock import share
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.logit_watch import LogitWatch
from tests.decoding.matrix import CLOCK
from tests.helpers import assert_near, tokens

MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300,context=96,agree=0.9"


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup(load(ModelSpec(name=MODEL, device="cpu")), 96)


def test_the_models_own_settings_do_not_reach_generate(setup: Setup) -> None:
    settings = setup.stock().model.generation_config
    assert settings.eos_token_id is None
    assert settings.temperature is None


def test_a_draft_model_is_a_model_of_its_own_even_if_it_is_the_target(setup: Setup) -> None:
    assert setup.stock(MODEL) is setup.stock(MODEL) is not setup.stock()


def test_passes_and_their_rows_are_counted_apart_from_the_prompt(setup: Setup) -> None:
    passes = setup.stock().generate(Request(tokens(9), Limits(5), CLOCK))
    assert [timed.rows for timed in passes] == [9, 1, 1, 1, 1]
    assert [len(timed.tokens) for timed in passes] == [1] * 5
    assert [timed.seconds for timed in passes] == sorted(timed.seconds for timed in passes)


def test_several_prompts_give_what_each_gives_alone_whatever_their_lengths(setup: Setup) -> None:
    stock = setup.stock()
    asked = [Request(tokens(n, n), Limits(6), CLOCK) for n in (3, 11, 7)]
    together = stock.generate_together(asked, [None] * 3)
    assert {len(timed.tokens) for timed in together} == {3}
    for row, request in enumerate(asked):
        alone = [timed.tokens[0] for timed in stock.generate(request)]
        assert [timed.tokens[row] for timed in together] == alone


def test_logits_that_chose_each_token_are_watched_alone_and_together(setup: Setup) -> None:
    stock, asked = setup.stock(), [Request(tokens(n, n), Limits(4), CLOCK) for n in (5, 8)]
    watches = [LogitWatch(range(4)) for _ in asked]
    together = stock.generate_together(asked, watches)
    for row, (request, watch) in enumerate(zip(asked, watches, strict=True)):
        alone = LogitWatch(range(4))
        stock.generate(request, alone)
        for position, timed in enumerate(together):
            assert int(watch.logits[position].argmax()) == timed.tokens[row]
            assert_near(watch.logits[position], alone.logits[position])


def test_only_plain_tensors_of_one_form_are_shared() -> None:
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.bias = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    share(theirs, ours)
    assert theirs.weight.data_ptr() == ours.weight.data_ptr()
    assert theirs.bias.data_ptr() != ours.bias.data_ptr()
    assert theirs.bias.dtype == torch.float64
