"""Training-free methods on families of every make: token for token what generate() gives."""

from __future__ import annotations

import copy

import pytest
from torch import float32

from benchmarks.families import PROMPT, TOKENS, tiny
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.engine.known import known
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from ppdbench.machine.clock import Clock
from ppdbench.methods import METHODS
from tests.families import greedy_truth

METHOD_OPTIONS: dict[str, dict[str, str]] = {
    "greedy": {},
    "prompt-lookup": {},
    "layerskip": {"exit_layer": "2"},
    "draft-verify": {},
    "lookahead": {},
    "jacobi": {},
}
# One of each make: windows, tables by type, distances, parallel blocks, scales, experts, sinks,
# latent attention, layers without places, keys and values that several layers look at, inputs of
# each layer's own, several streams.
MAKES = [
    *("bloom", "cohere2", "deepseek_v3", "gemma3n_text", "gemma4_text", "gpt_oss", "gptj"),
    *("granite", "llama4_text", "minicpm3", "mixtral", "mpt", "olmo3", "smollm3"),
]
RUNNING = [row.family for row in known().values() if row.runs and row.kind != "text and more"]
CAPACITY = len(PROMPT) + TOKENS + 40
FEWER = TOKENS // 2  # of what drafts, in families that stand for no others; past any window, too


def families() -> list[object]:
    """All that run; those that stand for no others take long in all."""
    return [pytest.param(f, marks=[] if f in MAKES else [pytest.mark.slow]) for f in RUNNING]


@pytest.mark.parametrize("family", families())
def test_methods_without_training_write_what_generate_writes(family: str) -> None:
    stock = tiny(family)
    truth = greedy_truth(stock, PROMPT, TOKENS)
    assert len(truth) == TOKENS
    model = StagedModel(copy.deepcopy(stock))
    assert model.dtype == float32
    target = Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, "")
    for name, options in METHOD_OPTIONS.items():
        try:
            decoder = METHODS.get(name).build(options).prepare(Setup(target, CAPACITY))
        except UnsupportedModel as refused:  # layers that are one block each
            assert (name, "without single blocks" in str(refused)) == ("draft-verify", True)
            continue
        if name == "lookahead" and model.remembers:
            continue  # its branches are refused, which tests of memories hold
        session = Session(model, CAPACITY, spare=decoder.rows)
        length = TOKENS if name == "greedy" or family in MAKES else FEWER
        request = Request(list(PROMPT), Limits(max_new_tokens=length), Clock(model.device))
        found = decoder.decode(session, request)
        assert list(found.output_ids) == truth[:length], f"{name} on {family}"


def test_the_makes_are_families_that_run() -> None:
    assert set(MAKES) <= set(RUNNING)
