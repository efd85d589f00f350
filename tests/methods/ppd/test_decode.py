"""The loop of Predictive Pipelined Decoding: greedy's tokens whatever was guessed or when."""

from __future__ import annotations

import pytest
import torch

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.errors import NumericalError
from ppdbench.methods.ppd.decode import LocalUpperHalf
from ppdbench.testing import CAPACITY, CLOCK, MODELS, cases, decode_case
from tests.methods.ppd.made import FAR, begun, check_everything, loaded, prepared


@pytest.mark.parametrize("name", [*MODELS, FAR])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_inline_gives_greedys_tokens_at_every_exit(name: str, k: int) -> None:
    n_layers = loaded(name).staged.n_layers
    for exit_after in range((n_layers + 1) // 2, n_layers):
        check_everything(prepared(name, k=k, exit_after=exit_after), name)


def test_a_wrong_guess_costs_nothing_but_the_gain() -> None:
    """Where layers disagree most tokens are missed, and candidates leave no trace in the cache."""
    matches = check_everything(prepared(FAR, k=1), FAR)
    assert 0 < sum(matches) < 0.5 * len(matches)


def test_matches_are_the_ranks_that_probing_finds() -> None:
    model = loaded(FAR).staged
    case = next(cases(model))
    for k in (1, 2, 5):
        form = prepared(FAR, k=k, exit_after=3)
        found = decode_case(form, case, model)
        session = Session(model, CAPACITY)
        session.reset([*case.prompt, *found.output_ids[:-1]])
        step = session.chain(len(session.tokens))
        hidden = session.run(session.embed(session.ids(session.tokens), step), 0, 3, step)
        early = model.logits(hidden)[0, len(case.prompt) - 1 :]
        own = early.gather(1, torch.tensor(found.output_ids)[:, None])
        ranks = (early > own).sum(1)
        assert found.pipelined is not None
        assert found.pipelined.matches == tuple((ranks < k).tolist())


def test_more_candidates_are_never_fewer_matches() -> None:
    counts = [sum(check_everything(prepared(FAR, k=k), FAR)) for k in (1, 3, 40)]
    assert counts[0] < counts[1] < counts[2]


def test_reading_out_before_the_token_is_known_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the early head runs for all candidates or, the token known, for the right one."""
    model = loaded(MODELS[1]).staged
    form = prepared(MODELS[1], k=3, exit_after=2)
    early = [decode_case(form, case, model) for case in cases(model)]
    monkeypatch.setattr(LocalUpperHalf, "answered", lambda _: True)
    late = [decode_case(form, case, model) for case in cases(model)]
    for a, b in zip(early, late, strict=True):
        assert a.pipelined is not None
        assert b.pipelined is not None
        assert (a.output_ids, a.pipelined.matches) == (b.output_ids, b.pipelined.matches)


def test_sampled_outputs_are_those_of_sampling_token_by_token() -> None:
    """Tokens are drawn from the last layer's logits, one draw each, as without candidates."""
    from ppdbench.decoding.loop import autoregressive

    model, target = loaded(MODELS[0]).staged, Target(kind="top-k", top_k=5)
    form = prepared(MODELS[0], k=2)
    case = next(cases(model))
    for seed in range(4):
        draws = [Chooser(target, torch.Generator().manual_seed(seed)) for _ in range(2)]
        session = Session(model, CAPACITY, spare=form.rows)
        ours = form.decode(session, Request(case.prompt, case.limits, CLOCK, draws[0]))
        theirs = autoregressive(session, Request(case.prompt, case.limits, CLOCK, draws[1]))
        assert ours.output_ids == theirs.output_ids


def test_a_nan_is_refused_and_the_next_output_is_right() -> None:
    model = load(ModelSpec(name=MODELS[0], device="cpu"))
    model.staged.flat = None  # programs keep weights of their own of norms
    form = begun(model, k=2)
    session = Session(model.staged, CAPACITY, spare=form.rows)
    case = next(cases(model.staged))
    norm = model.staged.adapter.final_norm
    assert norm is not None
    weight = norm.get_parameter("weight")
    kept = weight.clone()
    weight.fill_(float("nan"))
    with pytest.raises(NumericalError):
        form.decode(session, Request(case.prompt, case.limits, CLOCK))
    weight.copy_(kept)
    again = form.decode(session, Request(case.prompt, case.limits, CLOCK))
    assert again.output_ids == decode_case(form, case, model.staged).output_ids
