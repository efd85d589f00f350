"""Fast passes are refused where they are wrong, and only there."""

from __future__ import annotations

import pytest
import torch

from benchmarks.pass_checks import BUGS, damaged
from ppdbench.engine import artefacts
from ppdbench.engine.pass_check import PassPlan
from ppdbench.engine.staged import StagedModel, wider
from ppdbench.errors import NumericalError
from tests.compiling import uncompiled
from tests.families import stock_model
from tests.helpers import plain, tokens

COUNTS = (1, 3, 8)
DTYPES = [torch.float32, torch.bfloat16]


def made(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> StagedModel:
    monkeypatch.setattr(artefacts, "runner", uncompiled)
    model = StagedModel(stock_model("llama").to(dtype), text=tokens(150))
    model.compile(COUNTS)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
def test_good_passes_are_never_refused_and_planted_bugs_always(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(dtype, monkeypatch)
    for seed in range(8):
        model.hold_passes("compiled", COUNTS, "", seed=seed)
    for number, damage in enumerate(BUGS.values()):
        for n in COUNTS:
            with damaged(model.compiled, damage), pytest.raises(NumericalError, match="off by"):
                model.hold_passes("compiled", [n], "", seed=number)


@pytest.mark.parametrize("name", ["llama-mha-tied", "qwen3", "gemma2", "gpt2", "opt", "phi3"])
def test_the_wider_model_is_the_stock_model_in_that_type(name: str) -> None:
    model, truth = StagedModel(stock_model(name)), StagedModel(stock_model(name).double())
    ids = tokens(20)
    with torch.inference_mode():
        ours = wider(model).logits(plain(wider(model), ids))
        found = truth.logits(plain(truth, ids))
    assert ours.dtype == torch.float64
    # Words are scaled in the type of the model, and angles are told in float32.
    assert float((ours - found).abs().max() / found.abs().max()) < 1e-6


def test_rows_of_a_plan_are_drawn_anew_by_seed_and_alike_for_the_same_one() -> None:
    text = range(200)
    first, again, other = (PassPlan.over(text, COUNTS, 4096, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.tokens != other.tokens
    assert {len(each.rows) for each in first.passes[8]} == {7, 8}  # 7 rows are filled up to 8
    trees = [each for planned in first.passes.values() for each in planned if each.parents]
    assert [len(tree.rows) for tree in trees] == [3, 8]
    for tree in trees:
        assert first.parents[tree.rows[0]] == tree.start - 1


def test_a_short_model_gets_a_short_prompt() -> None:
    plan = PassPlan.over(range(200), COUNTS, 40, 0)
    assert plan.longest <= 40
