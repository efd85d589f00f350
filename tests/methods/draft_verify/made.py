"""What tests of skipped blocks share."""

from __future__ import annotations

from ppdbench.decoding.limits import Limits
from ppdbench.engine.staged import StagedModel
from ppdbench.methods.draft_verify.skip_score import SkipScorer
from tests.helpers import tokens

PROMPTS = [tokens(9, 0), tokens(6, 1), tokens(11, 2)]


def scorer(model: StagedModel, n: int = 12, draft_length: int = 8) -> SkipScorer:
    texts = [(prompt, Limits(n)) for prompt in PROMPTS]
    return SkipScorer(model, texts, draft_length=draft_length)
