"""Draft & Verify: exact whatever is skipped, and a threshold that follows the drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill, Verified, autoregressive, speculative
from ppdbench.decoding.sampling import GREEDY, Chooser, Target, generator_for
from ppdbench.decoding.verify import Outcome
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods.draft_verify.skip_file import SkipSet
from ppdbench.methods.draft_verify.strategy import DraftVerify, MovingThreshold, SelfDrafter
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, reference
from tests.families import FAMILIES
from tests.helpers import staged, tokens

MODELS = ["llama", "mistral-window", "gemma2", "gemma3", "gpt2", "opt", "opt-350m-like"]


def setup(model: StagedModel, name: str = "tiny", fingerprint: str = "f1") -> Setup:
    target = Loaded(ModelSpec(name=name), model, None, frozenset(), 0, fingerprint)
    return Setup(target, CAPACITY)


def drafter(model: StagedModel, **options: Any) -> SelfDrafter:
    return DraftVerify(**options).prepare(setup(model))


def skip_file(folder: Path, content: Any) -> str:
    path = folder / "skip_layers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


# Exactness


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_outputs_are_those_of_greedy_decoding(name: str) -> None:
    model = staged(name)
    decoder = drafter(model, threshold=0.1)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("name", ["llama", "gemma2", "opt-350m-like"])
@pytest.mark.parametrize(
    "skips", [([0, 1, 2, 3], [0, 1, 2]), ([], [1]), ([3], []), ([1, 2], [1, 2])]
)
def test_outputs_are_exact_whatever_is_skipped(
    name: str, skips: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    model = staged(name)
    path = skip_file(tmp_path, {"tiny": {"attention": skips[0], "mlp": skips[1]}})
    decoder = drafter(model, skip=path, threshold=0.0, adaptive=False, draft_length=5)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("name", MODELS)
def test_in_one_fixed_shape_outputs_are_the_same(name: str) -> None:
    model = staged(name)
    decoder = drafter(model, threshold=0.05, draft_length=4)
    for case in cases(model):
        ours = decode_case(decoder, case, model, fixed_rows=decoder.rows)
        greedy = reference(case, model, fixed_rows=decoder.rows)
        assert ours.output_ids == greedy.output_ids, case.name


def test_where_the_skipped_blocks_add_nothing_every_draft_is_accepted() -> None:
    spec = ModelSpec(name="synthetic:layers=8,hidden=64,heads=4,vocab=300,agree=1")
    loaded = load(spec)
    decoder = DraftVerify(threshold=0.0, adaptive=False).prepare(Setup(loaded, CAPACITY))
    ours = assert_exact(decoder, Case("plain", tokens(9), Limits(40)), loaded.staged)
    assert ours.accepted == ours.proposed == (8, 8, 8, 8, 2)


# Drafting


def opened(model: StagedModel, decoder: SelfDrafter, chooser: Chooser = GREEDY) -> Session:
    session = Session(model, CAPACITY, spare=decoder.rows)
    session.reset(tokens(9))
    session.tokens.append(int(session.prefill()[0, -1].argmax()))
    decoder.start(session, Prefill(chooser, {}))
    return session


@torch.inference_mode()
def test_drafting_leaves_every_layer_where_the_whole_model_left_it() -> None:
    model = staged("llama")
    decoder = drafter(model, threshold=0.0)
    session = opened(model, decoder)
    assert len(decoder.propose(session, 20)) == 8
    assert set(session.cache.lengths.values()) == {9}
    assert len(decoder.propose(session, 3)) == 3


@torch.inference_mode()
def test_a_draft_ends_with_the_first_token_below_the_threshold() -> None:
    model = staged("llama")
    free = drafter(model, threshold=0.0)
    whole = free.propose(opened(model, free), 20).tokens
    sure = confidences(model, whole)
    for threshold in (min(sure) + 1e-6, sorted(sure)[3], max(sure) + 1e-6):
        decoder = drafter(model, threshold=threshold)
        expected = next(i for i, p in enumerate(sure, start=1) if p < threshold)
        assert decoder.propose(opened(model, decoder), 20).tokens == whole[:expected]


def confidences(model: StagedModel, drafted: tuple[int, ...]) -> list[float]:
    """How likely the skipped model holds each drafted token, from passes made here."""
    decoder = drafter(model)
    session = opened(model, decoder)
    view = decoder.skipped.over(session)
    sure, token = [], session.tokens[-1]
    for i, follow in enumerate(drafted):
        logits = view.logits(view.forward(view.ids([token]), view.chain(1, 9 + i)))[0, -1]
        sure.append(float(logits.softmax(-1)[follow]))
        token = follow
    return sure


@torch.inference_mode()
def test_drawn_tokens_come_with_what_they_were_drawn_from() -> None:
    model = staged("llama")
    decoder = drafter(model, threshold=0.0, draft_length=4)
    target = Target(kind="top-k", top_k=5)
    session = opened(model, decoder, Chooser(target, generator_for(0, "a")))
    draft = decoder.propose(session, 20)
    draft.check(model.vocab_size)
    assert draft.probabilities is not None
    assert draft.probabilities.shape == (4, model.vocab_size)
    assert all(draft.probabilities[i, token] > 0 for i, token in enumerate(draft.tokens))


PROMPT = tokens(9, 4)


def test_sampled_outputs_follow_the_models_own_distribution(tmp_path: Path) -> None:
    """Three tokens, against exact probabilities; drafts of one and of two tokens occur."""
    model, target, n = staged("llama"), Target(kind="top-k", top_k=2), 400
    path = skip_file(tmp_path, {"tiny": {"attention": [], "mlp": [3]}})
    decoder = drafter(model, skip=path, threshold=0.1, draft_length=2)
    session = Session(model, CAPACITY, spare=decoder.rows)
    seen, lengths, accepted = Counter[tuple[int, ...]](), Counter[int](), 0
    for i in range(n):
        chooser = Chooser(target, generator_for(i, "draft-verify"))
        output = speculative(session, decoder, Request(PROMPT, Limits(4), CLOCK, chooser))
        seen[output.output_ids[:3]] += 1
        lengths[output.proposed[0]] += 1
        accepted += output.accepted[0]
    truth = first_three(model, target)
    assert set(seen) <= set(truth)
    assert len(truth) == 8
    assert min(lengths[1], lengths[2], accepted) > 50
    # 7 degrees of freedom: above 30 once in ten thousand times.
    assert sum((seen[ids] - n * p) ** 2 / (n * p) for ids, p in truth.items()) < 30


@torch.inference_mode()
def first_three(model: StagedModel, target: Target) -> dict[tuple[int, ...], float]:
    """The probability of every output of three tokens."""
    odds: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for tail, p in odds.items():
            session = Session(model, CAPACITY)
            session.reset([*PROMPT, *tail])
            spread = target.distribution(session.prefill()[:, -1])[0]
            for token in spread.nonzero()[:, 0].tolist():
                longer[(*tail, token)] = p * float(spread[token])
        odds = longer
    return odds


# The threshold


def test_the_threshold_moves_by_the_published_rule() -> None:
    threshold = MovingThreshold(DraftVerify())
    threshold.learn(accepted=2, drafted=4)  # the first rate counts whole: 0.5
    assert threshold.value == pytest.approx(0.9 * 0.6 + 0.1 * 0.61)
    threshold.learn(accepted=4, drafted=4)  # smoothed: 0.75, still below 0.9
    assert threshold.rate == pytest.approx(0.75)
    assert threshold.value == pytest.approx(0.602)
    for _ in range(2):
        threshold.learn(accepted=4, drafted=4)  # 0.875, then 0.9375: down again
    assert threshold.rate == pytest.approx(0.9375)
    assert threshold.value == pytest.approx(0.602)


def test_a_draft_of_full_length_does_not_lower_the_threshold() -> None:
    threshold = MovingThreshold(DraftVerify(draft_length=4))
    threshold.learn(accepted=4, drafted=4)
    assert threshold.value == 0.6


def test_the_threshold_stays_a_probability() -> None:
    high, low = (
        MovingThreshold(DraftVerify(threshold=1.0)),
        MovingThreshold(DraftVerify(threshold=0.0)),
    )
    for _ in range(5):
        high.learn(accepted=0, drafted=4)
        low.learn(accepted=4, drafted=4)
    assert (high.value, low.value) == (1.0, 0.0)


def test_without_adaptation_the_threshold_stays() -> None:
    model = staged("llama")
    case = next(cases(model))
    for adaptive in (False, True):
        decoder = drafter(model, threshold=0.3, adaptive=adaptive)
        decode_case(decoder, case, model)
        assert (decoder.threshold.value == 0.3) is not adaptive


def test_the_order_of_examples_changes_nothing() -> None:
    model = staged("llama")
    one, two = list(cases(model))[:2]
    decoder = drafter(model, threshold=0.05)
    first = decode_case(decoder, two, model)
    decode_case(decoder, one, model)
    again = decode_case(decoder, two, model)
    assert (first.proposed, first.accepted) == (again.proposed, again.accepted)


# Which blocks


@pytest.mark.parametrize(
    ("n_layers", "attention", "mlp"),
    [
        (1, (0,), ()),
        (2, (0,), (1,)),
        (3, (1,), ()),
        (4, (1,), (2,)),
        (12, (3, 5, 7), (4, 7)),
        (32, (8, 10, 12, 14, 16, 18, 20, 22), (9, 12, 15, 18, 21)),
    ],
)
def test_the_default_set_lies_in_the_middle(
    n_layers: int, attention: tuple[int, ...], mlp: tuple[int, ...]
) -> None:
    skips = SkipSet.default(n_layers)
    assert skips == SkipSet(attention, mlp)
    skips.check(n_layers, "default")


@pytest.mark.parametrize(
    ("name", "fingerprint", "expected"),
    [("a/b", "f1", 1), ("/models/b", "f1", 2), ("other", "f7", 3), ("a/b", "f7", 3)],
)
def test_a_model_finds_its_set_by_name_or_fingerprint(
    name: str, fingerprint: str, expected: int, tmp_path: Path
) -> None:
    content = {k: {"attention": [v], "mlp": []} for k, v in {"a/b": 1, "b": 2, "f7": 3}.items()}
    strategy = DraftVerify(skip=skip_file(tmp_path, content))
    decoder = strategy.prepare(setup(staged("llama"), name, fingerprint))
    assert decoder.skipped.attention == {expected}


ENTRY = {"attention": [1], "mlp": [2]}
BAD_FILES: dict[str, tuple[Any, str]] = {
    "torn": ('{"tiny": {', "is not JSON that can be used"),
    "a list": ([1], r"use \{model"),
    "empty": ({}, r"use \{model"),
    "no mapping": ({"tiny": [1]}, r"tiny: use \{"),
    "an unknown key": ({"tiny": {**ENTRY, "mpl": []}}, "tiny: unknown key 'mpl'; use attention"),
    "a missing key": ({"tiny": {"mlp": [1]}}, "tiny: 'attention' is missing"),
    "no list": ({"tiny": {**ENTRY, "mlp": 3}}, "tiny: mlp is 3; use a list"),
    "a name": ({"tiny": {**ENTRY, "mlp": ["3"]}}, "mlp names layer '3'; layers are whole"),
    "a truth": ({"tiny": {**ENTRY, "mlp": [True]}}, "mlp names layer True"),
    "a negative layer": ({"tiny": {**ENTRY, "mlp": [-1]}}, "mlp names layer -1"),
    "a layer twice": ({"tiny": {**ENTRY, "mlp": [1, 1]}}, "mlp names layer 1 twice"),
    "a model twice": ('{"tiny": {}, "tiny": {}}', "'tiny' stands there twice"),
}


@pytest.mark.parametrize("what", sorted(BAD_FILES))
def test_a_bad_file_is_refused_before_any_weights_load(what: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[what]
    with pytest.raises(ConfigError, match=message):
        DraftVerify(skip=skip_file(tmp_path, content))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json does not exist; `ppdbench skips"):
        DraftVerify(skip=str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        DraftVerify(skip=str(tmp_path))


BAD_SETS = {
    "beyond the last layer": ([1], [4], r"mlp layer 4, but this model has 4 layers; use 0\.\.3"),
    "everything": ([0, 1, 2, 3], [0, 1, 2, 3], "all 8 blocks are skipped; keep at least one"),
    "nothing": ([], [], "nothing is skipped"),
}


@pytest.mark.parametrize("what", sorted(BAD_SETS))
def test_a_set_that_does_not_fit_the_model_is_refused(what: str, tmp_path: Path) -> None:
    attention, mlp, message = BAD_SETS[what]
    path = skip_file(tmp_path, {"tiny": {"attention": attention, "mlp": mlp}})
    with pytest.raises(ConfigError, match=message):
        drafter(staged("llama"), skip=path)


def test_a_model_that_is_not_in_the_file_is_told_which_are(tmp_path: Path) -> None:
    path = skip_file(tmp_path, {"one": ENTRY, "two": ENTRY})
    with pytest.raises(ConfigError, match=r"no entry for model 'tiny'.* it has one, two; rename"):
        drafter(staged("llama"), skip=path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_length": 0}, "draft-verify: draft_length=0; use 1 or more"),
        ({"threshold": 1.5}, r"draft-verify: threshold=1\.5; use 0 to 1"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"target_acceptance": -0.1}, r"target_acceptance=-0\.1; use 0 to 1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DraftVerify(**options)


def test_the_strategy_imports_without_torch() -> None:
    code = "import sys, ppdbench.methods.draft_verify.strategy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_real_model_drafts_and_stays_exact(stories: Path) -> None:
    loaded = load(ModelSpec(name=str(stories), dtype="float32"))
    decoder = DraftVerify(threshold=0.3).prepare(Setup(loaded, 160))
    prompt = loaded.tokenizer("Once upon a time, there was a little girl").input_ids
    session = Session(loaded.staged, 160, spare=decoder.rows)
    limits = Limits(100, loaded.eos_ids)
    ours = decoder.decode(session, Request(prompt, limits, CLOCK))
    greedy = autoregressive(Session(loaded.staged, 160), Request(prompt, limits, CLOCK))
    assert ours.output_ids == greedy.output_ids
    assert sum(ours.accepted) > 0


def test_an_empty_draft_teaches_nothing() -> None:
    model = staged("llama")
    decoder = drafter(model)
    nothing = Verified(Draft.empty(), Outcome((), 5), (5,), torch.zeros(1, 1, 32), {})
    decoder.learn(Session(model, CAPACITY), nothing)
    assert decoder.threshold.rate is None
    assert decoder.threshold.value == 0.6
