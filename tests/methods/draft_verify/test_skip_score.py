"""The worth of a set of skipped blocks: how often its drafts agree, and what that predicts."""

from __future__ import annotations

import pytest
import torch

from ppdbench.decoding.limits import Limits
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import DataError
from ppdbench.methods.draft_verify.skip_file import SkipSet
from ppdbench.methods.draft_verify.skip_score import SkipScorer, predict
from tests.decoding.matrix import free
from tests.families import FAMILIES
from tests.helpers import staged
from tests.methods.draft_verify.made import PROMPTS, scorer

# What is measured


@torch.inference_mode()
def drafted_one_by_one(model: StagedModel, skips: SkipSet, n: int) -> list[bool]:
    """The slow way: at every position a draft of one token over freshly made exact rows."""
    matches = []
    for prompt in PROMPTS:
        output = free(model, prompt, n)
        for at in range(len(output) - 1):
            session = Session(model, 64)
            session.reset([*prompt, *output[:at]])
            session.prefill()
            view = SkippedModel(model, skips.attention, skips.mlp).over(session)
            hidden = view.forward(view.ids([output[at]]), view.chain(1, len(session.tokens)))
            matches.append(int(view.logits(hidden)[0, -1].argmax()) == output[at + 1])
    return matches


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_one_pass_over_all_positions_agrees_where_single_drafts_do(name: str) -> None:
    model = staged(name)
    ours = scorer(model)
    for skips in (SkipSet((1,)), SkipSet((), (2,)), SkipSet((1, 2), (0,))):
        view = SkippedModel(model, skips.attention, skips.mlp)
        matches = [match for text in ours.texts for match in text.matches(view)]
        assert matches == drafted_one_by_one(model, skips, 12)


def test_with_nothing_skipped_every_token_agrees_and_nothing_is_gained() -> None:
    score = scorer(staged("llama")).score(SkipSet())
    assert score.agreement == 1
    assert score.cost == 1
    assert score.speedup == pytest.approx(1)


def test_measuring_a_set_leaves_no_trace() -> None:
    model = staged("llama")
    ours = scorer(model)
    first = ours.score(SkipSet((1,), (2,)))
    ours.score(SkipSet((0, 1, 2), (3,)))
    ours.scores.clear()
    assert ours.score(SkipSet((1,), (2,))) == first


def test_the_prediction_walks_through_the_runs_of_matches() -> None:
    yes, no = True, False
    # Drafts of 2 at cost 1/4: [1, 1, 0] commits 3, then [0] commits 1, then the last alone.
    assert predict([[yes, yes, no, no, yes]], 0.25, 2) == (pytest.approx(5 / (1.5 + 1.25 + 1)), 2)
    assert predict([[no] * 6], 0.5, 4) == (pytest.approx(6 / (5 * 1.5 + 1)), 1)
    assert predict([[yes] * 8], 0.0, 3) == (pytest.approx(8 / 2), 3)


def test_outputs_of_one_token_cannot_be_measured() -> None:
    with pytest.raises(DataError, match="no output has a second token"):
        SkipScorer(staged("llama"), [(PROMPTS[0], Limits(1))])
