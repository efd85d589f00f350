"""A draft model: exact whatever it drafts, its cache always that of a fresh pass."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.engine import synthetic
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.methods.base import METHODS
from ppdbench.methods.speculative import (
    ModelDrafter,
    Speculative,
    tokenizer_difference,
)
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, reference
from tests.decoding.test_sampled import FITS, MISFITS, five_tokens, joint, misfit
from tests.decoding.test_sampled import PROMPT as SAMPLED_PROMPT
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB, assert_near, save_synthetic, staged, tokens


def loaded(model: StagedModel, tokenizer: Any = None, name: str = "tiny") -> Loaded:
    """A model as `load` hands it out."""
    return Loaded(ModelSpec(name=name), model, tokenizer, frozenset(), 0, "")


def drafter(
    model: StagedModel, target: StagedModel, kind: type[ModelDrafter] = ModelDrafter, **options: Any
) -> ModelDrafter:
    """A proposer over `model` for `target`."""
    strategy = Speculative(draft_model="tiny", **{"draft_length": 4, **options})
    return kind(strategy, loaded(model), Setup(loaded(target), CAPACITY))


def other(name: str, **overrides: Any) -> StagedModel:
    """A model that has nothing to do with the target but its vocabulary."""
    return StagedModel(stock_model(name, 7, **{"num_hidden_layers": 1, **overrides}))


def near(name: str) -> StagedModel:
    """The target with other weights by a little: its drafts are often right, often not."""
    model = stock_model(name)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter += 0.02 * torch.randn_like(parameter)
    return StagedModel(model)


# Exactness


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_target_as_its_own_draft_is_always_right(name: str) -> None:
    model = staged(name)
    itself = drafter(model, model)
    for case in itertools.islice(cases(model), 1, None, 2):
        ours = assert_exact(itself, case, model)
        if ours.finish == "length":
            assert ours.accepted == ours.proposed
            assert all(n == 4 for n in ours.proposed[:-2])


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_an_unrelated_draft_changes_nothing(name: str) -> None:
    model = staged(name)
    # Models that share rows with their head tend to repeat the newest token: all would agree.
    proposer = drafter(other(name, tie_word_embeddings=False), model, draft_length=3)
    some = itertools.islice(cases(model), 0, None, 2)
    seen = [assert_exact(proposer, case, model) for case in some]
    proposed, accepted = (sum(sum(getattr(d, w)) for d in seen) for w in ("proposed", "accepted"))
    assert proposed >= 100
    assert accepted < proposed / 4


@pytest.mark.parametrize("draft", ["gpt2", "gemma3"])
def test_draft_and_target_may_be_of_different_families(draft: str) -> None:
    model = staged("llama")
    proposer = drafter(staged(draft), model, adaptive=True, confidence=0.05)
    for case in cases(model):
        assert_exact(proposer, case, model)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("length", [1, 7])
def test_drafts_that_are_partly_right_change_nothing(name: str, length: int) -> None:
    model = staged(name)
    proposer = drafter(near(name), model, draft_length=length, adaptive=length > 1)
    seen = [assert_exact(proposer, case, model) for case in cases(model)]
    rounds = [pair for ours in seen for pair in zip(ours.accepted, ours.proposed, strict=True)]
    assert any(a == p > 0 for a, p in rounds)
    assert any(a == 0 < p for a, p in rounds)
    assert length == 1 or any(0 < a < p for a, p in rounds)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "opt"])
def test_in_one_fixed_shape_outputs_are_the_same(name: str) -> None:
    model = staged(name)
    proposer = drafter(near(name), model)
    for case in itertools.islice(cases(model), 0, None, 2):
        ours = decode_case(proposer, case, model, fixed_rows=proposer.rows)
        greedy = reference(case, model, fixed_rows=proposer.rows)
        assert ours.output_ids == greedy.output_ids == reference(case, model).output_ids


# The draft model's cache


class Watched(ModelDrafter):
    """Compares its cache with a fresh pass after every draft."""

    checks = 0

    def propose(self, session: Session, room: int) -> Draft:
        draft = super().propose(session, room)
        held, n = self.draft.tokens, len(session.tokens)
        assert held[:n] == session.tokens
        assert len(held) == n + max(0, len(draft.tokens) - 1) == self.draft.cached
        fresh = Session(self.draft.model, CAPACITY)
        fresh.forward(fresh.ids(held))
        for layer in range(self.draft.model.n_layers):
            for ours, truth in zip(
                self.draft.cache.rows(layer), fresh.cache.rows(layer), strict=True
            ):
                assert_near(ours, truth)
        Watched.checks += 1
        return draft


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gpt2"])
def test_after_every_rollback_the_draft_cache_is_that_of_a_fresh_prefill(name: str) -> None:
    model = staged(name)
    Watched.checks = 0
    proposer = drafter(near(name), model, Watched)
    for case in cases(model):
        assert_exact(proposer, case, model)
    assert Watched.checks > 40


def test_tokens_that_others_drafted_replace_its_own_in_the_cache() -> None:
    model = staged("llama")
    case = next(cases(model))
    truth = [*case.prompt, *reference(case, model).output_ids]

    class Overruled(Watched):
        def propose(self, session: Session, room: int) -> Draft:
            draft = super().propose(session, room)
            n = len(session.tokens)
            assert draft.tokens != tuple(truth[n : n + 4])
            return Draft.chain(truth[n : n + 4])

    Watched.checks = 0
    ours = assert_exact(drafter(other("llama"), model, Overruled), case, model)
    assert ours.accepted == (4, 4, 4, 4, 2)
    assert Watched.checks == 5


class Counted(ModelDrafter):
    """Notes how many rows each of its passes had."""

    passes: list[list[int]]

    def start(self, session: Session, prefill: Any) -> None:
        self.passes = [[]]
        super().start(session, prefill)

    def propose(self, session: Session, room: int) -> Draft:
        self.passes.append([])
        return super().propose(session, room)

    def _feed(self, tokens: list[int]) -> None:
        self.passes[-1].append(len(tokens))
        super()._feed(tokens)

    def _after(self, tokens: list[int]) -> torch.Tensor:
        self.passes[-1].append(len(tokens))
        return super()._after(tokens)


def test_no_row_is_run_twice_and_what_is_missing_comes_in_one_pass() -> None:
    model = staged("llama")
    case = next(cases(model))
    right = drafter(model, model, Counted, draft_length=3)
    assert decode_case(right, case, model).accepted == (3, 3, 3, 3, 3, 2)
    assert isinstance(right, Counted)
    # The prompt; then the newest token; from then on the last draft and the token after it.
    assert right.passes == [[9], [1, 1, 1], *[[2, 1, 1]] * 4, [2, 1]]

    wrong = drafter(other("llama"), model, Counted, draft_length=3)
    assert set(decode_case(wrong, case, model).accepted) == {0}
    assert isinstance(wrong, Counted)
    assert {tuple(p) for p in wrong.passes[1:-2]} == {(1, 1, 1)}


def test_the_order_of_examples_changes_nothing() -> None:
    model = staged("llama")
    proposer = drafter(model, model, adaptive=True, draft_length=6)
    mixed = drafter(other("llama", num_hidden_layers=2), model, adaptive=True, draft_length=6)

    def outcome(case: Case, which: ModelDrafter) -> tuple[Any, ...]:
        decoded = decode_case(which, case, model)
        return decoded.output_ids, decoded.proposed, decoded.accepted

    for which in (proposer, mixed):
        every = list(cases(model))[::3]
        forward = [outcome(case, which) for case in every]
        backward = [outcome(case, which) for case in reversed(every)]
        assert forward == backward[::-1]


# Options


def test_drafts_have_the_length_asked_for_and_the_rows_to_verify_it() -> None:
    model = staged("llama")
    for length in (1, 5, 40):
        proposer = drafter(model, model, draft_length=length)
        assert proposer.rows == 1 + length
        ours = decode_case(proposer, next(cases(model)), model)
        assert ours.proposed[0] == min(length, 22)


def test_an_adaptive_draft_shrinks_by_one_and_grows_by_two() -> None:
    model = staged("llama")

    class Scripted(ModelDrafter):
        right = [False] * 4 + [True] * 3 + [False]

        def start(self, session: Session, prefill: Any) -> None:
            self.left = list(self.right)
            super().start(session, prefill)

        def propose(self, session: Session, room: int) -> Draft:
            draft = super().propose(session, room)
            if self.left and not self.left.pop(0):
                return Draft.chain([(t + 1) % VOCAB for t in draft.tokens])
            return draft

    case = Case("long", tokens(9, 0), Limits(50))
    ours = decode_case(drafter(model, model, Scripted, adaptive=True), case, model)
    assert ours.proposed[:9] == (4, 3, 2, 1, 1, 3, 4, 4, 3)
    fixed = decode_case(drafter(model, model, Scripted), case, model)
    assert set(fixed.proposed[:8]) == {4}


def test_an_unsure_draft_stops_early_and_a_sure_one_does_not() -> None:
    model = staged("llama")
    case = next(cases(model))
    free, sure = (decode_case(drafter(model, model, confidence=c), case, model) for c in (0.0, 0.1))
    silent = decode_case(drafter(model, model, confidence=0.9999999), case, model)
    assert free.output_ids == sure.output_ids == silent.output_ids
    assert set(silent.proposed) == {0}
    assert {0, 4} < set(sure.proposed)
    assert sure.accepted == sure.proposed  # the target's own drafts, only shorter


def test_confidence_is_the_probability_of_the_likeliest_token() -> None:
    model = staged("llama")
    case = next(cases(model))
    session = Session(model, CAPACITY)
    session.reset([*case.prompt, reference(case, model).output_ids[0]])
    with torch.inference_mode():
        likeliest = float(session.prefill().softmax(-1).amax())
    for share, expected in ((0.999, True), (1.001, False)):
        ours = decode_case(drafter(model, model, confidence=likeliest * share), case, model)
        assert (ours.proposed[0] > 0) is expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "speculative: no draft_model; give --set draft_model="),
        ({"draft_model": "  "}, "no draft_model"),
        ({"draft_model": "x", "draft_length": "-1"}, "draft_length=-1; use 0 or more"),
        ({"draft_model": "x", "confidence": "1"}, r"confidence=1.0; use 0 \(off\) or more, below"),
        ({"draft_model": "x", "confidence": "-0.1"}, "confidence=-0.1"),
        ({"draft_model": "x", "confidence": "nan"}, "confidence=nan"),
        ({"draft_model": "x", "adaptive": "maybe"}, "adaptive='maybe' is not true or false"),
        ({"draft_model": "x", "draft_length": "four"}, "draft_length='four' is not a value"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        METHODS.get("speculative").build(options)


def test_options_are_read_as_typed() -> None:
    words = {"draft_model": "a/b", "draft_length": "7", "confidence": "0.4", "adaptive": "true"}
    assert METHODS.get("speculative").build(words) == Speculative(
        draft_model="a/b", draft_length=7, confidence=0.4, adaptive=True
    )


# Vocabularies of other widths


def test_a_wider_draft_vocabulary_never_proposes_what_the_target_lacks() -> None:
    model = staged("llama")
    wide = other("llama", vocab_size=4 * VOCAB)
    seen: Counter[int] = Counter()

    class Seen(ModelDrafter):
        def propose(self, session: Session, room: int) -> Draft:
            draft = super().propose(session, room)
            seen.update(draft.tokens)
            return draft

    for case in cases(model):
        assert_exact(drafter(wide, model, Seen), case, model)
    assert sum(seen.values()) > 100
    assert max(seen) < VOCAB


def test_after_an_id_that_the_draft_lacks_nothing_is_drafted_until_the_next_example() -> None:
    model = staged("llama")
    narrow = other("llama", vocab_size=VOCAB // 2)
    proposer = drafter(narrow, model)
    readable = Case("readable", [t % (VOCAB // 2) for t in tokens(9)], Limits(24))
    foreign = Case("foreign", [5, VOCAB - 1, 7], Limits(24))
    for case in (readable, foreign, readable):
        ours = assert_exact(proposer, case, model)
        first = next(
            (i for i, t in enumerate([*case.prompt, *ours.output_ids]) if t >= narrow.vocab_size),
        )
        drafted_before = sum(n > 0 for n in ours.proposed)
        assert (drafted_before == 0) is (first <= len(case.prompt))
        assert ours.proposed[-2] == 0
    for case in cases(model):
        assert_exact(proposer, case, model)


# Sampled targets


def sampled_outputs(proposer: ModelDrafter, target: StagedModel, wanted: Target) -> Counter[Any]:
    session, chooser = Session(target, 16), Chooser(wanted, generator_for(3, "draft model"))
    counts: Counter[Hashable] = Counter()
    for _ in range(400):
        ours = proposer.decode(session, Request(SAMPLED_PROMPT, Limits(4), CLOCK, chooser))
        counts[ours.output_ids[:3]] += 1
    return counts


SAMPLED = {
    "unsure and adaptive": (5, {"confidence": 0.35, "adaptive": True}),
    "a wider draft vocabulary": (9, {}),
    "a narrower draft vocabulary": (4, {}),
}


@pytest.mark.parametrize("what", sorted(SAMPLED))
def test_sampled_outputs_have_the_targets_joint_distribution(what: str) -> None:
    width, options = SAMPLED[what]
    target = five_tokens()
    wanted = Target(kind="top-p", top_p=0.9 if width == 9 else 1.0, temperature=1.2)
    draft = five_tokens(seed=9, width=width)
    proposer = drafter(draft, target, draft_length=2, **options)
    counts = sampled_outputs(proposer, target, wanted)
    assert misfit(counts, joint(target, wanted)) < FITS
    assert misfit(counts, joint(five_tokens(seed=9), wanted)) > MISFITS


def test_a_sampled_draft_of_the_target_itself_is_always_kept() -> None:
    model = staged("llama")
    proposer = drafter(model, model)
    session = Session(model, CAPACITY, spare=proposer.rows)
    chooser = Chooser(Target(kind="top-k", top_k=8), generator_for(0, "itself"))
    ours = proposer.decode(session, Request(tokens(9), Limits(40), CLOCK, chooser))
    # Rounding between passes of different shapes may cost a token, once in many thousands.
    assert ours.accepted == ours.proposed
    again = Chooser(chooser.target, generator_for(0, "itself"))
    assert proposer.decode(session, Request(tokens(9), Limits(40), CLOCK, again)).output_ids == (
        ours.output_ids
    )


def test_a_draft_model_that_breaks_down_is_an_error_and_leaves_nothing_behind() -> None:
    target = staged("llama")
    broken = StagedModel(stock_model("llama", 7), packed=False)
    weight = broken.model.model.layers[0].mlp.up_proj.weight
    good = weight.clone()
    proposer = drafter(broken, target)
    for wanted in (Target(), Target(kind="top-k")):
        weight.fill_(float("inf"))
        session, chooser = Session(target, CAPACITY, spare=5), Chooser(wanted, generator_for(0))
        with pytest.raises(NumericalError, match="draft_model=tiny after 10 tokens"):
            proposer.decode(session, Request(tokens(9), Limits(8), CLOCK, chooser))
        weight.copy_(good)
        assert_exact(proposer, next(cases(target)), target)


# From a name to a draft model that fits

TARGET = "synthetic:layers=2,hidden=32,vocab=300,context=64"


@pytest.fixture(scope="module")
def target() -> Loaded:
    return load(ModelSpec(name=TARGET, device="cpu"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model folder for it, its vocabulary padded."""
    spec = "layers=1,hidden=32,vocab=320,context=64,seed=4"
    return save_synthetic(tmp_path_factory.mktemp("draft"), spec)


def through(draft_model: str | Path, target: Loaded, capacity: int = CAPACITY) -> Decoded:
    """Greedy decoding by way of `prepare`, compared with the target's own."""
    proposer = Speculative(draft_model=str(draft_model)).prepare(Setup(target, capacity))
    case = Case("loaded", target.tokenizer.encode("to be or not"), Limits(24))
    return assert_exact(proposer, case, target.staged)


def test_a_draft_model_folder_is_loaded_and_drafts(target: Loaded, saved: Path) -> None:
    ours = through(saved, target)
    assert sum(ours.proposed) > 20


def test_the_same_synthetic_model_accepts_everything(target: Loaded) -> None:
    ours = through(TARGET, target)
    assert ours.accepted == ours.proposed


def test_the_draft_model_gets_the_targets_type_and_device() -> None:
    spec = ModelSpec(name=TARGET, dtype="bfloat16", device="cpu")
    proposer = Speculative(draft_model=TARGET).prepare(Setup(load(spec), 32))
    assert proposer.draft.model.dtype == torch.bfloat16
    assert proposer.draft.model.device == torch.device("cpu")
    assert proposer.draft.capacity == 32


def refused(draft_model: str | Path, target: Loaded, capacity: int = CAPACITY) -> str:
    with pytest.raises(ConfigError) as caught:
        Speculative(draft_model=str(draft_model)).prepare(Setup(target, capacity))
    assert str(caught.value).startswith("speculative: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_vocabulary_is_refused_and_the_first_difference_named(target: Loaded) -> None:
    larger = TARGET.replace("vocab=300", "vocab=310")
    assert "id 300 is '⟨300⟩' there and missing in the target" in refused(larger, target)
    smaller = TARGET.replace("vocab=300", "vocab=280")
    assert "id 280 is missing there and '⟨280⟩' in the target" in refused(smaller, target)


def renamed(core: Tokenizer) -> Tokenizer:
    """Two ids exchanged."""
    content = json.loads(core.to_str())
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    return Tokenizer.from_str(json.dumps(content))


def prefixed(core: Tokenizer) -> Tokenizer:
    """The same vocabulary, but a space is put before every text."""
    content = json.loads(core.to_str())
    content["pre_tokenizer"]["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, r"id 35 is 'B' there and 'A' in the target"),
        (prefixed, r"dogs\.. becomes, from token 0 on, ids \[223, 54, .* there and \[54, 74, "),
    ],
)
def test_what_decides_token_ids_is_compared_not_file_names(
    change: Any, message: str, target: Loaded, saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    core = synthetic.tokenizer(300, 64).backend_tokenizer
    synthetic.wrapped(change(core), 64).save_pretrained(folder)
    text = refused(folder, target)
    assert "has another tokenizer than " + TARGET in text
    with pytest.raises(ConfigError, match=message):
        Speculative(draft_model=str(folder)).prepare(Setup(target, CAPACITY))


def test_ids_that_neither_model_has_do_not_count(target: Loaded) -> None:
    more = synthetic.tokenizer(300, 64)
    more.add_tokens(["<image>"])
    assert tokenizer_difference(target, loaded(target.staged, more)) is None
    wide = other("llama", vocab_size=320)
    told = tokenizer_difference(target, loaded(wide, more))
    assert told == "id 300 is '<image>' there and missing in the target"


def test_a_context_that_is_too_short_is_refused_before_decoding(target: Loaded) -> None:
    short = TARGET.replace("context=64", "context=48")
    text = refused(short, target, capacity=49)
    assert "sequences of 49 tokens" in text
    assert "runs 48 at most" in text
    Speculative(draft_model=short).prepare(Setup(target, 48))


def test_a_model_that_does_not_load_is_named_as_the_draft_model(
    target: Loaded, tmp_path: Path
) -> None:
    assert refused("/no/such/folder", target) == (
        "speculative: draft model: model folder /no/such/folder does not exist"
    )
    assert "synthetic shape 'nothing'" in refused("synthetic:nothing", target)
    assert "is no model folder: it has no config.json" in refused(tmp_path, target)
    offline = Loaded(ModelSpec(name=TARGET, offline=True), *_parts(target))
    text = refused("nobody/no-model", offline)
    assert "give draft_model the path of a local folder" in text
    assert "--model" not in text


def _parts(of: Loaded) -> tuple[Any, ...]:
    return of.staged, of.tokenizer, of.eos_ids, of.pad_id, of.fingerprint


# A real model


def fewer_layers(source: Path, folder: Path, n: int) -> Path:
    """The real model's first layers as a draft model of its own."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source)
    model.model.layers = model.model.layers[:n]
    model.config.num_hidden_layers = n
    model.save_pretrained(folder)
    for part in source.glob("tokenizer*"):
        shutil.copy(part, folder)
    return folder


def test_a_real_model_keeps_much_of_what_its_first_layers_draft(
    stories: Path, tmp_path: Path
) -> None:
    target = load(ModelSpec(name=str(stories), device="cpu"))
    folder = fewer_layers(stories, tmp_path / "draft", 4)
    setup = Setup(target, 128)
    session = Session(target.staged, 128, spare=5)
    ids = target.tokenizer.encode("Once upon a time, Tim and his dog went to the park.")
    limits = Limits(80, target.eos_ids)
    from ppdbench.decoding.loop import autoregressive

    greedy = autoregressive(session, Request(ids, limits, CLOCK))
    rates = {}
    for name in (stories, folder):
        proposer = Speculative(draft_model=str(name)).prepare(setup)
        ours = proposer.decode(session, Request(ids, limits, CLOCK))
        assert ours.output_ids == greedy.output_ids
        rates[name] = sum(ours.accepted) / sum(ours.proposed)
    assert rates[stories] > 0.95  # the last drafts lie beyond the end
    assert 0.1 < rates[folder] < rates[stories]
