"""bfloat16 and float16 through every family: what rounding does is told from what is wrong."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from ppdbench.decoding.limits import Limits
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.decoding.judging import judged, truth
from tests.decoding.matrix import CAPACITY, Case, Oracle, decode_case, reference
from tests.families import FAMILIES, stock_model
from tests.helpers import plain, tokens

halves = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
every_family = pytest.mark.parametrize("name", FAMILIES)
# Near the capacity, so that an oracle has little to find out.
CASES = [Case(f"prompt {n}", tokens(CAPACITY - n, n), Limits(12)) for n in (20, 21)]


@functools.cache
def half(name: str, dtype: torch.dtype) -> StagedModel:
    return StagedModel(stock_model(name).to(dtype))


@halves
@every_family
def test_drafts_verified_in_half_precision_are_identical_or_measured_ties(
    name: str, dtype: torch.dtype
) -> None:
    model = half(name, dtype)
    for case in CASES:
        greedy = reference(case, model)
        for oracle in (Oracle(model, 4), Oracle(model, 4, 2), Oracle(model, 3, 2, tree=True)):
            ours = decode_case(oracle, case, model)
            stock = truth(name, dtype)
            found = judged(model, stock, case.prompt, ours, greedy, oracle, case.limits)
            assert found.verdict in ("identical", "tie"), (case.name, found)


@halves
@every_family
def test_chains_of_one_fixed_shape_are_identical_in_half_precision(
    name: str, dtype: torch.dtype
) -> None:
    model = half(name, dtype)
    for case in CASES:
        oracle = Oracle(model, 4, 2)
        ours = decode_case(oracle, case, model, fixed_rows=oracle.rows)
        assert ours.output_ids == reference(case, model, fixed_rows=oracle.rows).output_ids


@halves
@every_family
def test_a_wrong_token_is_no_tie_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model, case = half(name, dtype), CASES[0]
    greedy, ours = reference(case, model), decode_case(Oracle(model, 4), case, model)
    session = Session(model, CAPACITY)
    session.reset([*case.prompt, *greedy.output_ids[:5]])
    with torch.inference_mode():
        worst = int(session.prefill()[0, 0].argmin())
    ids = [*greedy.output_ids[:5], worst, *greedy.output_ids[6:]]
    wrong = dataclasses.replace(ours, output_ids=tuple(ids))
    found = judged(model, truth(name, dtype), case.prompt, wrong, greedy)
    assert (found.verdict, found.position) == ("mismatch", 5)


@halves
@every_family
def test_logits_in_half_precision_are_those_of_transformers(name: str, dtype: torch.dtype) -> None:
    """Up to what rounding every intermediate result to that type does to both."""
    stock, ids = stock_model(name).to(dtype), tokens(13)
    with torch.inference_mode():
        truth = stock(torch.tensor([ids])).logits.float()
        exact = stock_model(name)(torch.tensor([ids])).logits
        model = half(name, dtype)
        ours = model.logits(plain(model, ids)).float()
    assert float((ours - exact).abs().max()) <= 2 * float((truth - exact).abs().max()) + 1e-3
