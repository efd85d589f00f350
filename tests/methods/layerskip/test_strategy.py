"""LayerSkip: drafts of the first layers, nothing computed twice, the model's own output."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill, Verified, speculative
from ppdbench.decoding.sampling import GREEDY, Chooser, Target
from ppdbench.decoding.verify import Outcome
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods.base import METHODS
from ppdbench.methods.early_exit import EarlyExit
from ppdbench.methods.layerskip.strategy import REUSES, LayerSkip, SelfSpeculation
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, reference
from tests.families import FAMILIES, stock_model
from tests.helpers import assert_near, staged, tokens

PROMPT = tokens(9, 5)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep and short": {"exit_layer": 3, "draft_length": 1},
    "long": {"exit_layer": 2, "draft_length": 9},
    "adaptive": {"exit_layer": 3, "adaptive": True, "max_draft": 6},
    "confident": {"exit_layer": 2, "confidence": 0.3},
    "never sure": {"confidence": 1.0},
}
SOME = {"plain 1", "3 new tokens", "up to the capacity"}


def setup(model: StagedModel, capacity: int = CAPACITY) -> Setup:
    return Setup(Loaded(ModelSpec(), model, None, frozenset(), 0, ""), capacity)


def made(model: StagedModel, **options: Any) -> SelfSpeculation:
    return LayerSkip(**options).prepare(setup(model))


def opened(model: StagedModel, decoder: SelfSpeculation, chooser: Chooser = GREEDY) -> Session:
    """A sequence right before its first draft."""
    session = Session(model, CAPACITY, spare=decoder.rows)
    session.reset(PROMPT)
    session.tokens.append(int(session.prefill().argmax()))
    decoder.start(session, Prefill(chooser, {}))
    return session


def silenced(exit_layer: int, **overrides: Any) -> StagedModel:
    """A model whose layers from `exit_layer` on add nothing: its drafts are always right."""
    stock = stock_model("llama", **overrides)
    with torch.no_grad():
        for layer in stock.model.layers[exit_layer:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return StagedModel(stock)


# Exactness


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_variant_gives_the_greedy_output(name: str) -> None:
    model = staged(name)
    chosen = [case for case in cases(model) if case.name in SOME]
    assert len(chosen) == len(SOME)
    for options in [*VARIANTS.values(), {"reuse": "kv"}, {"reuse": "none"}]:
        decoder = made(model, **options)
        for case in chosen:
            assert_exact(decoder, case, model)


@pytest.mark.parametrize("reuse", REUSES)
def test_every_end_of_an_output_is_met(reuse: str) -> None:
    model = staged("llama")
    decoder = made(model, reuse=reuse, exit_layer=3)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_in_one_fixed_shape_outputs_are_the_same(name: str) -> None:
    model = staged(name)
    for reuse in REUSES:
        decoder = made(model, reuse=reuse, exit_layer=2)
        for case in (c for c in cases(model) if c.name in SOME):
            ours = decode_case(decoder, case, model, fixed_rows=decoder.rows)
            greedy = reference(case, model, fixed_rows=decoder.rows)
            assert ours.output_ids == greedy.output_ids == reference(case, model).output_ids


def test_what_is_reused_changes_neither_drafts_nor_acceptance() -> None:
    model = staged("llama")
    for options in VARIANTS.values():
        runs = [
            decode_case(made(model, reuse=reuse, **options), case, model)
            for reuse in REUSES
            for case in list(cases(model))[:2]
        ]
        counts = [(run.proposed, run.accepted) for run in runs]
        assert counts[:2] == counts[2:4] == counts[4:]


def test_examples_do_not_touch_each_other() -> None:
    model = staged("llama")
    for reuse in REUSES:
        decoder = made(model, reuse=reuse, exit_layer=3, adaptive=True)
        session = Session(model, CAPACITY, spare=decoder.rows)
        runs = [
            speculative(session, decoder, Request(prompt, Limits(12), CLOCK))
            for prompt in (PROMPT, tokens(20, 8), PROMPT)
        ]
        first, _, again = [(run.output_ids, run.proposed, run.accepted) for run in runs]
        assert again == first


# Drafts


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma3", "gpt2", "opt-350m-like"])
def test_a_draft_is_what_the_exit_alone_would_go_on_with(name: str, reuse: str) -> None:
    model = staged(name)
    for exit_layer in (1, 3):
        decoder = made(model, exit_layer=exit_layer, draft_length=5, reuse=reuse)
        session = opened(model, decoder)
        case = Case("so far", list(session.tokens), Limits(5))
        alone = decode_case(EarlyExit(exit_layer=exit_layer).prepare(setup(model)), case, model)
        assert decoder.propose(session, 20).tokens == alone.output_ids


def test_what_is_handed_on_is_what_the_exit_layer_gives() -> None:
    model = staged("llama")
    decoder = made(model, exit_layer=2)
    session = opened(model, decoder)
    draft = decoder.propose(session, 20)
    assert draft.computed is not None
    cache, steps = model.new_cache(CAPACITY)
    ids = [*session.tokens, *draft.tokens]
    step = steps.chain(0, len(ids))
    whole = model.run(model.embed(torch.tensor([ids]), step), 0, 2, step, cache)
    assert_near(draft.computed.hidden, whole[:, len(PROMPT) :])
    assert session.cache.lengths == {0: len(ids), 1: len(ids), 2: len(PROMPT), 3: len(PROMPT)}


def test_no_draft_is_longer_than_the_room() -> None:
    model = staged("llama")
    for reuse in REUSES:
        for room in (1, 2, 3):
            decoder = made(model, reuse=reuse)
            assert len(decoder.propose(opened(model, decoder), room)) == room


@pytest.mark.parametrize("reuse", REUSES)
def test_upper_layers_that_add_nothing_agree_with_every_draft(reuse: str) -> None:
    model = silenced(2)
    case = Case("plain", PROMPT, Limits(24))
    ours = assert_exact(made(model, exit_layer=2, reuse=reuse), case, model)
    assert ours.accepted == ours.proposed == (4, 4, 4, 4, 2)


# What is computed


def rows_run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Counter[int], int, int]:
    """Rows that each layer ran after the prompt, steps, and tokens drafted."""
    model = staged("llama")
    decoder = made(model, exit_layer=2, **options)
    case = Case("plain", PROMPT, Limits(24))
    counted: Counter[int] = Counter()
    call = model.adapter.call_layer

    def counting(index: int, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        counted[index] += hidden.shape[1]
        return call(index, hidden, *rest)

    monkeypatch.setattr(model.adapter, "call_layer", counting)
    ours = decode_case(decoder, case, model)
    monkeypatch.undo()
    for layer in range(4):
        counted[layer] -= len(PROMPT)
    assert 0 < sum(ours.accepted) < sum(ours.proposed)
    return counted, len(ours.step_ms), sum(ours.proposed)


@pytest.mark.parametrize("confidence", [0.0, 0.3])
def test_with_all_reused_no_layer_runs_a_row_twice(
    monkeypatch: pytest.MonkeyPatch, confidence: float
) -> None:
    counted, steps, drafted = rows_run(monkeypatch, confidence=confidence)
    assert counted == dict.fromkeys(range(4), steps + drafted)


def test_with_one_cache_alone_checking_runs_the_drafting_layers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, steps, drafted = rows_run(monkeypatch, reuse="kv")
    checked = steps + drafted
    # The newest token and all drafts but the last; the last step has no room for any.
    assert counted[0] == counted[1] == checked + drafted
    assert counted[2] == counted[3] == checked


def test_without_reuse_the_draft_has_a_prompt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, _, _ = rows_run(monkeypatch, reuse="kv")
    apart, _, _ = rows_run(monkeypatch, reuse="none")
    assert apart[0] >= shared[0] + len(PROMPT)
    assert apart[3] == shared[3]


# Draft lengths


def lengths(model: StagedModel, n: int = 40, **options: Any) -> tuple[int, ...]:
    return decode_case(made(model, **options), Case("plain", PROMPT, Limits(n)), model).proposed


def test_adaptive_drafts_grow_while_all_is_accepted_up_to_the_longest() -> None:
    grown = lengths(silenced(1), exit_layer=1, draft_length=2, adaptive=True, max_draft=5)
    assert grown[:6] == (2, 3, 4, 5, 5, 5)


def test_adaptive_drafts_shrink_to_one_while_none_is_accepted() -> None:
    model = staged("llama")
    decoder = made(model, draft_length=3, adaptive=True)
    session = opened(model, decoder)
    seen = []
    for _ in range(4):
        session.cache.truncate(len(PROMPT))
        draft = decoder.propose(session, 20)
        seen.append(len(draft))
        decoder.learn(session, Verified(draft, Outcome((), 0), (), torch.zeros(1), {}))
    assert seen == [3, 2, 1, 1]
    decoder.learn(session, Verified(Draft.empty(), Outcome((), 0), (), torch.zeros(1), {}))
    session.cache.truncate(len(PROMPT))
    assert len(decoder.propose(session, 20)) == 1, "an empty draft says nothing"


def test_each_example_starts_with_the_same_draft_length() -> None:
    model = silenced(1)
    decoder = made(model, exit_layer=1, draft_length=2, adaptive=True)
    case = Case("plain", PROMPT, Limits(30))
    assert decode_case(decoder, case, model).proposed == decode_case(decoder, case, model).proposed


def test_rows_are_those_of_the_longest_draft() -> None:
    model = staged("llama")
    assert made(model, draft_length=3).rows == 4
    assert made(model, draft_length=3, adaptive=True, max_draft=7).rows == 8


def test_drafting_stops_before_the_first_token_that_is_not_likely_enough() -> None:
    model = staged("llama")
    sure = made(model, exit_layer=2, draft_length=6)
    session = opened(model, sure)
    tokens_, likely = sure.propose(session, 20).tokens, []
    for n in range(6):
        cache, steps = model.new_cache(CAPACITY)
        ids = [*session.tokens, *tokens_[:n]]
        step = steps.chain(0, len(ids))
        hidden = model.run(model.embed(torch.tensor([ids]), step), 0, 2, step, cache)
        likely.append(float(model.logits(hidden[:, -1:]).softmax(-1).max()))
    for n in range(1, 6):
        if likely[n] < min(likely[:n]):
            decoder = made(model, exit_layer=2, draft_length=6, confidence=likely[n] + 1e-4)
            assert decoder.propose(opened(model, decoder), 20).tokens == tokens_[:n]
    assert likely[0] > min(likely)
    none = made(model, exit_layer=2, confidence=likely[0] + 1e-4)
    assert none.propose(opened(model, none), 20).tokens == ()


# Sampling

SAMPLED = Target(kind="top-p", top_p=1.0)


def drawer(seed: int, target: Target = SAMPLED) -> Chooser:
    return Chooser(target, torch.Generator().manual_seed(seed))


def test_drawn_drafts_say_what_they_were_drawn_from() -> None:
    model = staged("llama")
    for reuse in REUSES:
        decoder = made(model, exit_layer=2, reuse=reuse)
        draft = decoder.propose(opened(model, decoder, drawer(1)), 20)
        draft.check(model.vocab_size)
        assert draft.probabilities is not None
        assert draft.probabilities.sum(-1).tolist() == pytest.approx([1] * 4)
        assert all(float(draft.probabilities[i, t]) > 0 for i, t in enumerate(draft.tokens))


def test_a_draw_from_one_token_is_the_greedy_output() -> None:
    model = staged("llama")
    one = drawer(0, Target(kind="top-k", top_k=1))
    decoder = made(model, exit_layer=3)
    session = Session(model, CAPACITY, spare=decoder.rows)
    ours = speculative(session, decoder, Request(PROMPT, Limits(20), CLOCK, one))
    assert ours.output_ids == reference(Case("", PROMPT, Limits(20)), model).output_ids


def test_where_drafting_stops_does_not_hang_on_what_was_drawn() -> None:
    model = staged("llama")
    stopping = 0
    for confidence in (0.1, 0.2, 0.3, 0.5):
        decoder = made(model, exit_layer=2, draft_length=1, confidence=confidence)
        drafts = [decoder.propose(opened(model, decoder, drawer(s)), 9).tokens for s in range(12)]
        assert len({len(draft) for draft in drafts}) == 1
        stopping += not drafts[0]
        assert not drafts[0] or len(set(drafts)) > 1
    assert 0 < stopping < 4


def test_sampled_outputs_follow_the_model_whatever_the_exit_is_sure_of() -> None:
    model = StagedModel(stock_model("llama", vocab_size=6, num_hidden_layers=2))
    target, n = Target(kind="top-p", top_p=1.0, temperature=2.0), 400
    decoder = made(model, exit_layer=1, draft_length=1, confidence=0.4)
    session, chooser = Session(model, 16, spare=decoder.rows), drawer(7, target)

    def after(ids: list[int]) -> torch.Tensor:
        session.reset(ids)
        with torch.inference_mode():
            return target.distribution(session.prefill()[:, -1])[0]

    prompt = [3, 4, 5]
    first = after(prompt)
    truth = sum((p * after([*prompt, t]) for t, p in enumerate(first)), torch.zeros(6))
    counts, drafted = torch.zeros(6), 0
    for _ in range(n):
        out = speculative(session, decoder, Request(prompt, Limits(3), CLOCK, chooser))
        counts[out.output_ids[1]] += 1
        drafted += out.proposed[0]
    assert n / 5 < drafted < n * 4 / 5, "choose a confidence that some drafts meet"
    # Chi-squared over 5 degrees of freedom: 20.5 is passed once in a thousand.
    assert float(((counts - truth * n) ** 2 / (truth * n)).sum()) < 20.5


# Options

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such layer": ({"exit_layer": 40}, "exit_layer=40, but this model has 4 layers; use 1..3"),
    "the last layer": ({"exit_layer": 4}, "exit_layer=4, but this model has 4 layers; use 1..3"),
    "a negative layer": ({"exit_layer": -2}, "exit_layer=-2; use 1 or more"),
    "a negative length": ({"draft_length": -1}, "draft_length=-1; use 0 or more"),
    "beyond certainty": ({"confidence": 1.1}, "confidence=1.1; use 0 .off. to 1"),
    "an unknown reuse": ({"reuse": "q"}, "reuse='q' is not known; use kvq, kv, none"),
    "a low ceiling": (
        {"draft_length": 6, "adaptive": True, "max_draft": 5},
        "max_draft=5 is below draft_length=6; use 6 or more",
    ),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_impossible_options_are_errors_that_say_what_is_allowed(what: str) -> None:
    options, message = BAD[what]
    with pytest.raises(ConfigError, match=f"layerskip: {message}"):
        made(staged("llama"), **options)


def test_a_quarter_of_the_layers_draft_unless_told() -> None:
    assert made(staged("llama")).exit_layer == 1
    assert made(StagedModel(stock_model("llama", num_hidden_layers=9))).exit_layer == 2
    assert made(StagedModel(stock_model("llama", num_hidden_layers=2))).exit_layer == 1


def test_it_is_listed_as_exact_and_reads_its_options_from_text() -> None:
    method = METHODS.get("layerskip")
    assert method.exact
    built = method.build({"exit_layer": "3", "adaptive": "true", "reuse": "kv"})
    assert built == LayerSkip(exit_layer=3, adaptive=True, reuse="kv")


def test_a_real_models_fourth_layer_drafts_tokens_that_its_fifth_accepts(stories: Path) -> None:
    loaded = load(ModelSpec(name=str(stories), device="cpu"))
    prompt = loaded.tokenizer("Once upon a time, there was a little girl named").input_ids
    case = Case("real", prompt, Limits(40))
    for reuse in REUSES:
        decoder = LayerSkip(exit_layer=4, reuse=reuse).prepare(setup(loaded.staged))
        ours = assert_exact(decoder, case, loaded.staged)
        assert sum(ours.accepted) / sum(ours.proposed) > 0.15
