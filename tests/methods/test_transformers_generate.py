"""transformers' own decoding as methods: the same tokens, each pass and its tokens counted."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.identity import as_run, one_row_logits
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError
from ppdbench.machine.clock import Clock
from ppdbench.methods import method
from ppdbench.methods.transformers_generate import GenerateDecoder
from tests.helpers import tokens

MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300,context=96,agree=0.9"
CLOCK = Clock(torch.device("cpu"))
REPEATING = [7, 8, 9, 10, 11, 12] * 4
PEERS = {
    "transformers:greedy": {},
    "transformers:greedy-static": {},
    "transformers:early-exit": {"exit_layer": "1", "draft_length": "3"},
    "transformers:prompt-lookup": {"max_draft": "3"},
    "transformers:assistant": {"draft_model": MODEL, "draft_length": "3"},
}


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup(load(ModelSpec(name=MODEL, device="cpu")), 96)


def peer(setup: Setup, name: str) -> GenerateDecoder:
    made = method(name).build(PEERS[name]).prepare(setup)
    assert isinstance(made, GenerateDecoder)
    return made


def both(
    setup: Setup, name: str, prompt: list[int], limits: Limits
) -> tuple[Decoded, Decoded, Session]:
    session = Session(setup.target.staged, setup.capacity)
    ours = autoregressive(session, Request(prompt, limits, CLOCK))
    return peer(setup, name).decode(session, Request(prompt, limits, CLOCK)), ours, session


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("prompt", [tokens(13), REPEATING, [5, 6]], ids=["any", "repeat", "short"])
def test_outputs_are_those_of_our_greedy_decoding(
    setup: Setup, name: str, prompt: list[int]
) -> None:
    theirs, ours, _ = both(setup, name, prompt, Limits(24))
    assert theirs.output_ids == ours.output_ids
    assert theirs.finish == "length"


@pytest.mark.parametrize("name", PEERS)
def test_every_token_belongs_to_the_prefill_or_to_a_timed_step(setup: Setup, name: str) -> None:
    theirs, _, _ = both(setup, name, REPEATING, Limits(24))
    assert 1 + sum(theirs.accepted) + len(theirs.accepted) == 24
    assert len(theirs.step_ms) == len(theirs.rows) == len(theirs.accepted)
    assert min(theirs.step_ms) > 0 < theirs.prefill_ms
    # The first step's count holds what the prefill's own draft gave.
    later = list(zip(theirs.accepted, theirs.proposed, strict=True))[1:]
    assert all(0 <= kept <= proposed for kept, proposed in later)


@pytest.mark.parametrize("name", ["transformers:greedy", "transformers:greedy-static"])
def test_plain_generation_takes_one_pass_per_token(setup: Setup, name: str) -> None:
    theirs, _, _ = both(setup, name, tokens(9), Limits(10))
    assert theirs.rows == (1,) * 9
    assert theirs.proposed == theirs.accepted == (0,) * 9


def test_drafts_have_the_length_asked_for(setup: Setup) -> None:
    theirs, _, _ = both(setup, "transformers:early-exit", tokens(13), Limits(24))
    assert max(theirs.proposed) == 3
    lookup, _, _ = both(setup, "transformers:prompt-lookup", REPEATING, Limits(24))
    assert max(lookup.proposed) <= 3


@pytest.mark.parametrize("name", PEERS)
def test_outputs_end_at_eos_where_ours_end(setup: Setup, name: str) -> None:
    whole, _, _ = both(setup, name, tokens(13), Limits(24))
    limits = Limits(24, frozenset({whole.output_ids[9]}))
    theirs, ours, _ = both(setup, name, tokens(13), limits)
    assert theirs.output_ids == ours.output_ids
    assert theirs.finish == "eos"


class Letters:
    """Ids as letters, so that a stop string is a run of ids."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(0x4E00 + i) for i in ids)


@pytest.mark.parametrize("name", PEERS)
def test_outputs_end_at_stop_strings_where_ours_end(setup: Setup, name: str) -> None:
    whole, _, _ = both(setup, name, tokens(13), Limits(24))
    stop = Letters().decode(list(whole.output_ids[8:10]))
    limits = Limits(24, stop=(stop,), tokenizer=Letters())
    theirs, ours, _ = both(setup, name, tokens(13), limits)
    assert theirs.output_ids == ours.output_ids
    assert theirs.finish == "stop"


@pytest.mark.parametrize("name", PEERS)
def test_one_new_token_takes_no_step(setup: Setup, name: str) -> None:
    theirs, ours, _ = both(setup, name, tokens(13), Limits(1))
    assert theirs.output_ids == ours.output_ids
    assert theirs.step_ms == theirs.accepted == theirs.rows == ()


@pytest.mark.parametrize("name", PEERS)
def test_a_wrong_token_is_a_mismatch_by_passes_made_again(setup: Setup, name: str) -> None:
    theirs, _, session = both(setup, name, tokens(13), Limits(20))
    ids = list(theirs.output_ids)
    ids[11] = (ids[11] + 1) % 300
    wrong = dataclasses.replace(theirs, output_ids=tuple(ids))
    run = partial(peer(setup, name).decode, session, Request(tokens(13), Limits(20), CLOCK))
    assert as_run(run, session, wrong, 11) is None


@pytest.mark.parametrize("name", PEERS)
def test_the_logits_that_chose_a_peers_token_are_those_of_its_own_passes(
    setup: Setup, name: str
) -> None:
    """Drafts in the pass over the prompt included: position 0 is no exception."""
    theirs, ours, session = both(setup, name, tokens(13), Limits(20))
    run = partial(peer(setup, name).decode, session, Request(tokens(13), Limits(20), CLOCK))
    for position in (0, 1, 7, 19):
        logits = as_run(run, session, theirs, position)
        assert logits is not None
        assert int(logits.argmax()) == theirs.output_ids[position]
        near = one_row_logits(session, tokens(13), ours, position)
        assert near is not None
        assert float((logits - near).abs().max()) < 1e-4


def test_the_stock_model_is_loaded_once_and_reads_our_weights_where_they_are_plain(
    setup: Setup,
) -> None:
    first, second = peer(setup, "transformers:greedy"), peer(setup, "transformers:early-exit")
    assert first.stock is second.stock
    ours, theirs = setup.target.staged.model, first.stock.model
    assert ours.model.norm.weight.data_ptr() == theirs.model.norm.weight.data_ptr()
    plain = Setup(load(ModelSpec(name=MODEL, device="cpu", dtype="float16")), 96)  # never packed
    stock = plain.stock()
    mine = dict(plain.target.staged.model.named_parameters())
    same = [p.data_ptr() == mine[n].data_ptr() for n, p in stock.model.named_parameters()]
    assert all(same)


def test_models_of_other_vocabularies_are_refused(setup: Setup) -> None:
    other = {"draft_model": MODEL.replace("vocab=300", "vocab=301")}
    with pytest.raises(ConfigError, match="301 words, the model 300"):
        method("transformers:assistant").build(other).prepare(setup)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("early-exit", {"exit_layer": "4"}, "this model has 4 layers; use 1..3"),
        ("early-exit", {"exit_layer": "-1"}, "exit_layer=-1; use 0 or more"),
        ("early-exit", {"draft_length": "-1"}, "draft_length=-1; use 0 or more"),
        ("prompt-lookup", {"max_draft": "-1"}, "max_draft=-1; use 0 or more"),
        ("assistant", {}, "no draft_model"),
        ("assistant", {"draft_model": "./nowhere"}, "draft model: .*folder ./nowhere"),
    ],
)
def test_bad_options_are_refused(
    setup: Setup, name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        method(f"transformers:{name}").build(options).prepare(setup)
