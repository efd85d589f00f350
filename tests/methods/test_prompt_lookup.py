"""Prompt lookup: how many tokens are proposed, where somebody said so and where nobody did."""

from __future__ import annotations

import pytest

from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.errors import ConfigError
from ppdbench.methods.prompt_lookup import PromptLookup, drafted_on
from ppdbench.methods.transformers_generate import GenerateLookup

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=96"


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup(load(ModelSpec(name=MODEL, device="cpu")), 96)


@pytest.mark.parametrize(("asked", "length"), [(0, 5), (2, 2), (8, 8)])
def test_as_many_are_proposed_as_was_asked_or_as_suits_a_cpu(
    setup: Setup, asked: int, length: int
) -> None:
    proposer = PromptLookup(max_draft=asked).prepare(setup)
    assert proposer.options.max_draft == length
    assert proposer.rows == 1 + length
    assert proposer.used == {"max_draft": str(length)}, "tables show what was used"
    peer = GenerateLookup(max_draft=asked).prepare(setup)
    assert peer.options["prompt_lookup_num_tokens"] == length
    assert peer.used == proposer.used


def test_where_more_rows_cost_little_more_are_proposed() -> None:
    assert (drafted_on("cpu"), drafted_on("cuda")) == (5, 8)


def test_fewer_than_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_draft=-1; use 0 or more"):
        PromptLookup(max_draft=-1)
