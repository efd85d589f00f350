"""Jacobi decoding: exact whatever it guesses, and right where the iteration has settled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Verified, autoregressive
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.decoding.verify import Outcome
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods.jacobi import Jacobi, JacobiProposer
from ppdbench.testing import assert_order_is_nothing
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, reference
from tests.families import FAMILIES
from tests.helpers import staged, tokens


def prepared(model: StagedModel, **options: int) -> JacobiProposer:
    loaded = Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, "")
    return Jacobi(**options).prepare(Setup(loaded, CAPACITY))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_output_is_greedy_decodings(name: str) -> None:
    model = staged(name)
    decoder = prepared(model)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("window", [1, 2, 40])
def test_any_window_is_exact(window: int) -> None:
    model = staged("llama")
    decoder = prepared(model, window=window)
    for case in cases(model):
        ours = assert_exact(decoder, case, model)
        assert all(n <= window for n in ours.proposed)


def test_in_one_fixed_shape_the_output_is_the_same() -> None:
    model = staged("gemma2")
    decoder = prepared(model, window=5)
    for case in cases(model):
        ours = decode_case(decoder, case, model, fixed_rows=decoder.rows)
        assert ours.output_ids == reference(case, model).output_ids


def test_the_next_guess_is_what_the_model_predicted_behind_the_committed_tokens() -> None:
    model = staged("llama")
    decoder = prepared(model, window=4)
    session = Session(model, CAPACITY, spare=decoder.rows)
    session.tokens = [5, 6, 7]
    draft = Draft.chain([10, 11, 12, 13])
    verified = Verified(draft, Outcome((0,), 21), (10, 21, 22, 23, 24), torch.empty(0), {})
    decoder.learn(session, verified)
    assert decoder.propose(session, 9).tokens == (22, 23, 24, 24)
    assert decoder.propose(session, 2).tokens == (22, 23)


@pytest.mark.parametrize("name", ["qwen3", "opt"])
def test_a_text_that_repeats_one_token_is_accepted_in_whole_windows(name: str) -> None:
    model = staged(name)
    case = Case("one token again and again", tokens(6, 0), Limits(40))
    assert len(set(reference(case, model).output_ids[-20:])) == 1
    ours = assert_exact(prepared(model, window=4), case, model)
    assert ours.accepted.count(4) >= 3


def test_the_order_of_examples_changes_nothing() -> None:
    model = staged("llama")
    decoder = prepared(model)
    accepted = assert_order_is_nothing(decoder, list(cases(model))[:5], model)
    assert any(map(sum, accepted))


def test_sampled_outputs_are_as_long_as_asked() -> None:
    model = staged("llama")
    decoder = prepared(model)
    chooser = Chooser(Target(kind="top-p"), torch.Generator().manual_seed(3))
    session = Session(model, CAPACITY, spare=decoder.rows)
    ours = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK, chooser))
    assert len(ours.output_ids) == 24


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_without_tokens_is_refused(window: int) -> None:
    with pytest.raises(ConfigError, match=f"jacobi: window={window}; use 1 or more"):
        Jacobi(window=window)


def test_a_real_model_settles_some_tokens_early(stories: Path) -> None:
    loaded = load(ModelSpec(name=str(stories)))
    decoder = Jacobi().prepare(Setup(loaded, 256))
    session = Session(loaded.staged, 256, spare=decoder.rows)
    prompt = loaded.tokenizer.encode("Once upon a time, there was a little girl named Lily.")
    ours = decoder.decode(session, Request(prompt, Limits(160), CLOCK))
    greedy = autoregressive(Session(loaded.staged, 256), Request(prompt, Limits(160), CLOCK))
    assert ours.output_ids == greedy.output_ids
    assert sum(ours.accepted) > 0
