"""Early exit: a model that ends early, and one that ends where it is sure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.methods.base import METHODS
from ppdbench.methods.early_exit import EarlyExit, EarlyExitDecoder
from tests.decoding.matrix import CAPACITY, CLOCK, Case, cases, decode_case, reference
from tests.families import FAMILIES, stock_model
from tests.helpers import staged, tokens

PROMPT = tokens(9, 5)
SHORT = Case("short", PROMPT, Limits(14))


def setup(model: StagedModel, capacity: int = CAPACITY) -> Setup:
    return Setup(Loaded(ModelSpec(), model, None, frozenset(), 0, ""), capacity)


def made(model: StagedModel, **options: Any) -> EarlyExitDecoder:
    return EarlyExit(**options).prepare(setup(model))


def states_of(model: StagedModel, ids: list[int]) -> list[Tensor]:
    """The last token's hidden state after 0, 1, ... layers, all layers run over all tokens."""
    cache, steps = model.new_cache(CAPACITY)
    step = steps.chain(0, len(ids))
    hidden = model.embed(torch.tensor([ids]), step)
    states = [hidden[0, -1]]
    model.run(hidden, 0, model.n_layers, step, cache, tap=lambda _, out: states.append(out[0, -1]))
    return states


def softmax_gap(before: Tensor, after: Tensor, logits: Tensor) -> float:
    first, second = logits.softmax(-1).sort(descending=True).values[:2].tolist()
    return first - second


def top(before: Tensor, after: Tensor, logits: Tensor) -> float:
    return float(logits.softmax(-1).max())


def cosine(before: Tensor, after: Tensor, logits: Tensor) -> float:
    return float(before @ after / (before.norm() * after.norm()))


SIMPLE: dict[str, Callable[[Tensor, Tensor, Tensor], float]] = {
    "softmax": softmax_gap,
    "top": top,
    "state": cosine,
}


def slowly(
    model: StagedModel, prompt: list[int], n: int, measure: str, confidence: float, first: int
) -> tuple[list[int], list[int]]:
    """Confident exits from whole passes over the text so far: tokens and depths."""
    ids, depths = list(prompt), []
    for _ in range(n):
        states = states_of(model, ids)
        for depth in range(first, model.n_layers + 1):
            logits = model.logits(states[depth][None, None])[0, 0]
            sure = SIMPLE[measure](states[depth - 1], states[depth], logits) > confidence
            if sure or depth == model.n_layers:
                break
        ids.append(int(logits.argmax()))
        depths.append(depth)
    return ids[len(prompt) :], depths


# Fixed exits


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_fixed_exit_is_the_model_cut_off_there(name: str) -> None:
    model = staged(name)
    for exit_layer in (1, 2, 3):
        ids = list(PROMPT)
        for _ in range(14):
            state = states_of(model, ids)[exit_layer]
            ids.append(int(model.logits(state[None, None]).argmax()))
        ours = decode_case(made(model, exit_layer=exit_layer), SHORT, model)
        assert list(ours.output_ids) == ids[len(PROMPT) :]


def test_layers_beyond_a_fixed_exit_never_run() -> None:
    model = staged("llama")
    session = Session(model, CAPACITY)
    decoder = made(model, exit_layer=2)
    out = decoder.decode(session, Request(PROMPT, Limits(6), CLOCK))
    held = len(PROMPT) + len(out.output_ids) - 1
    assert session.cache.lengths == {0: held, 1: held, 2: 0, 3: 0}
    assert out.exits == (2,) * 6


def test_half_of_the_layers_run_unless_told_and_one_at_least_with_confidence() -> None:
    model = staged("llama")
    assert made(model).first == 2
    assert made(model, confidence=0.5).first == 1


def test_ends_are_those_of_the_exits_own_output() -> None:
    model = staged("llama")
    decoder = made(model)
    free = decode_case(decoder, Case("free", PROMPT, Limits(12)), model).output_ids
    for n in (1, 2, 5):
        out = decode_case(decoder, Case("length", PROMPT, Limits(n)), model)
        assert (out.output_ids, out.finish) == (free[:n], "length")
    place = free.index(free[4])
    out = decode_case(decoder, Case("eos", PROMPT, Limits(12, frozenset({free[4]}))), model)
    assert (out.output_ids, out.finish) == (free[: place + 1], "eos")


# Exits where the model is sure


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_confidence_that_is_never_exceeded_gives_the_greedy_output(name: str) -> None:
    model = staged(name)
    decoders = [made(model, confidence=1.0, measure=m) for m in SIMPLE]
    for case in list(cases(model))[::3]:
        greedy = reference(case, model)
        for decoder in decoders:
            ours = decode_case(decoder, case, model)
            assert (ours.output_ids, ours.finish) == (greedy.output_ids, greedy.finish), case.name
            assert set(ours.exits) == {model.n_layers}


def test_a_layer_that_changes_nothing_is_sure_but_not_more_than_sure() -> None:
    stock = stock_model("llama")
    with torch.no_grad():
        for layer in stock.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model = StagedModel(stock)
    for confidence, depth in ((0.999, 1), (1.0, 4)):
        decoder = made(model, confidence=confidence, measure="state")
        assert set(decode_case(decoder, SHORT, model).exits) == {depth}


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("measure", sorted(SIMPLE))
def test_tokens_and_depths_are_those_of_whole_passes_over_true_keys(
    name: str, measure: str
) -> None:
    model = staged(name)
    seen = set()
    for first in (1, 2):
        # A threshold between what the layers of this model reach, so that depths vary.
        states = states_of(model, PROMPT)
        reached = [
            SIMPLE[measure](states[d - 1], states[d], model.logits(states[d][None, None])[0, 0])
            for d in range(first, model.n_layers)
        ]
        confidence = min(max(sum(reached) / len(reached), 0.01), 0.99)
        output, depths = slowly(model, PROMPT, 14, measure, confidence, first)
        decoder = made(model, exit_layer=first, confidence=confidence, measure=measure)
        ours = decode_case(decoder, SHORT, model)
        assert list(ours.output_ids) == output
        assert list(ours.exits) == depths
        seen.update(depths)
    assert len(seen) > 1


def test_no_layer_holds_more_than_the_one_below_and_all_hold_the_truth() -> None:
    model = staged("llama")
    session = Session(model, CAPACITY)
    decoder = made(model, confidence=0.3, measure="top")
    longer = decoder.decode(session, Request(PROMPT, Limits(14), CLOCK))
    # End after a token that left early.
    n = max(i for i, depth in enumerate(longer.exits, start=1) if depth < model.n_layers)
    out = decoder.decode(session, Request(PROMPT, Limits(n), CLOCK))
    held = list(session.cache.lengths.values())
    assert held == sorted(held, reverse=True)
    assert held[-1] < held[0]
    whole = Session(model, CAPACITY)
    whole.reset([*PROMPT, *out.output_ids[:-1]])
    whole.prefill()
    for layer, n in session.cache.lengths.items():
        for ours, truth in zip(session.cache.rows(layer), whole.cache.rows(layer), strict=True):
            assert torch.allclose(ours, truth[:, :, :n], atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma3", "gpt2"])
@pytest.mark.parametrize("measure", sorted(SIMPLE))
def test_in_one_fixed_shape_outputs_are_the_same(name: str, measure: str) -> None:
    model = staged(name)
    decoder = made(model, confidence=0.3, measure=measure)
    loose = decode_case(decoder, SHORT, model)
    strict = decode_case(decoder, SHORT, model, fixed_rows=decoder.rows)
    assert strict.output_ids == loose.output_ids
    assert strict.exits == loose.exits


def test_examples_do_not_touch_each_other() -> None:
    model = staged("llama")
    decoder = made(model, confidence=0.3, measure="top")
    session = Session(model, CAPACITY)

    def run(prompt: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        out = decoder.decode(session, Request(prompt, Limits(12), CLOCK))
        return out.output_ids, out.exits

    first = run(PROMPT)
    run(tokens(20, 8))
    assert run(PROMPT) == first


# What every decoder owes


@pytest.mark.parametrize("options", [{}, {"confidence": 0.3, "measure": "top"}])
def test_a_draw_from_one_token_is_the_greedy_exit(options: dict[str, Any]) -> None:
    model = staged("llama")
    decoder = made(model, **options)
    session = Session(model, CAPACITY)
    one = Chooser(Target(kind="top-k", top_k=1))
    drawn = decoder.decode(session, Request(PROMPT, Limits(10), CLOCK, one))
    greedy = decoder.decode(session, Request(PROMPT, Limits(10), CLOCK))
    assert drawn.output_ids == greedy.output_ids


def test_times_and_counts_have_one_entry_per_step() -> None:
    model = staged("llama")
    out: Decoded = decode_case(made(model), SHORT, model)
    assert len(out.step_ms) == len(out.accepted) == len(out.proposed) == 13
    assert set(out.accepted) | set(out.proposed) == {0}
    assert out.prefill_ms > 0
    assert min(out.step_ms) > 0


@pytest.mark.parametrize("options", [{}, {"confidence": 0.3, "measure": "state"}])
def test_numbers_gone_wrong_are_an_error_that_leaves_no_trace(options: dict[str, Any]) -> None:
    stock = stock_model("llama")
    model = StagedModel(stock)
    broken = made(model, **options)
    session = Session(model, CAPACITY)
    right = broken.decode(session, Request(PROMPT, Limits(6), CLOCK)).output_ids
    weight = stock.model.embed_tokens.weight
    bad = right[2]
    kept = weight[bad].clone()
    weight[bad] = float("nan")
    place = right.index(bad)
    assert bad not in PROMPT
    with pytest.raises(NumericalError, match=f"at output position {place + 2};"):
        broken.decode(session, Request(PROMPT, Limits(6), CLOCK))
    session.cache.hold(CAPACITY, 0, model.n_layers)
    assert all(bool(t.isfinite().all()) for layer in range(4) for t in session.cache.rows(layer))
    weight[bad] = kept
    again = broken.decode(session, Request(PROMPT, Limits(6), CLOCK))
    assert again.output_ids == right


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such layer": ({"exit_layer": 4}, "exit_layer=4, but this model has 4 layers; use 1..3"),
    "a negative layer": ({"exit_layer": -1}, "exit_layer=-1; use 1 or more"),
    "beyond certainty": ({"confidence": 1.5}, "confidence=1.5; use 0 .off. to 1"),
    "no number": ({"confidence": float("nan")}, "confidence=nan"),
    "an unknown measure": ({"measure": "luck"}, "measure='luck' is not known; use softmax, top"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_impossible_options_are_errors_that_say_what_is_allowed(what: str) -> None:
    options, message = BAD[what]
    with pytest.raises(ConfigError, match=f"early-exit: {message}"):
        made(staged("llama"), **options)


def test_a_model_of_one_layer_has_no_early_exit() -> None:
    model = StagedModel(stock_model("llama", num_hidden_layers=1))
    with pytest.raises(ConfigError, match="this model has 1 layer; exits take 2 or more"):
        made(model)


def test_it_is_listed_as_inexact_and_reads_its_options_from_text() -> None:
    method = METHODS.get("early-exit")
    assert not method.exact
    built = method.build({"exit_layer": "3", "confidence": "0.9", "measure": "state"})
    assert built == EarlyExit(exit_layer=3, confidence=0.9, measure="state")


@pytest.mark.parametrize("module", ["early_exit", "layerskip"])
def test_listing_needs_no_torch(module: str) -> None:
    code = f"import sys, ppdbench.methods.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_real_model_leaves_early_where_it_is_sure(stories: Path) -> None:
    loaded = load(ModelSpec(name=str(stories), device="cpu"))
    model = loaded.staged
    prompt = loaded.tokenizer("Once upon a time, there was a little girl named").input_ids
    case = Case("real", prompt, Limits(40))
    decoder = EarlyExit(exit_layer=4, confidence=0.9).prepare(setup(model))
    ours = decode_case(decoder, case, model)
    assert set(ours.exits) == {4, 5}
    output, depths = slowly(model, prompt, 40, "softmax", 0.9, 4)
    assert (list(ours.output_ids), list(ours.exits)) == (output, depths)
