"""Prompt tokens: which tree a pass fills, the output that stays greedy's, the options."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill, Verified
from ppdbench.decoding.passes import run_pass
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.methods import METHODS
from ppdbench.methods.prompt_tokens.chains import ChainPattern, first_pattern
from ppdbench.methods.prompt_tokens.network import Chain
from ppdbench.methods.prompt_tokens.strategy import PromptTokens, PromptTokensProposer
from ppdbench.methods.speculative import ModelDrafter, PromptedDrafter, Speculative
from ppdbench.runs.store import read_run
from ppdbench.testing import assert_order_is_nothing
from ppdbench.trees.choice import ROWS, general
from ppdbench.trees.dynamic import DynamicTree, search
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import (
    CAPACITY,
    CLOCK,
    Case,
    assert_exact,
    cases,
    decode_case,
    free,
    known,
)
from tests.decoding.matrix import reference as greedy
from tests.families import FAMILIES, stock_model
from tests.helpers import assert_near, staged, tokens
from tests.methods.prompt_tokens.made import (
    DYNAMIC,
    STATIC,
    UNEVEN,
    VARIANTS,
    adapter,
    as_loaded,
    prompted,
    prompts_of,
    some_cases,
)
from tests.methods.test_speculative import near

TREES = {"dynamic": DYNAMIC, "static": STATIC, "uneven": UNEVEN}


class Knowing(PromptTokensProposer):
    """Sometimes guesses right, at any rank that its tree has or the next one."""

    def start(self, session: Session, prefill: Prefill) -> None:
        super().start(session, prefill)
        self.truth = known(self.model, tuple(session.tokens[:-1]))

    def propose(self, session: Session, room: int) -> Draft:
        self.known = len(session.tokens)
        return super().propose(session, room)

    def _guessed(self) -> Tensor:
        n = self.known
        rows = super()._guessed().tolist()
        for ahead, row in enumerate(rows):
            truth = self.truth[n + ahead : n + ahead + 1]
            row[:] = [token for token in row if token not in truth]
            rank = 0 if n % 3 else (n * 7 + ahead * 3) % (self.top + 1)
            row[rank:rank] = truth
        return torch.tensor([row[: self.top] for row in rows])


def knowing(model: StagedModel, tree: DynamicTree = DYNAMIC, **parts: Any) -> Knowing:
    return Knowing(prompts_of(model, **parts), tree, model, {})


# Exactness


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_outputs_are_those_of_greedy_in_every_family(name: str) -> None:
    model = staged(name)
    for decoder in (prompted(model, UNEVEN), knowing(model)):
        for case in some_cases(model):
            assert_exact(decoder, case, model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_every_variant(variant: str) -> None:
    model = staged("mistral-window")
    decoder = knowing(model, UNEVEN, **VARIANTS[variant])
    for case in some_cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("tree", TREES)
def test_at_every_end_of_an_output(tree: str) -> None:
    model = staged("llama")
    decoder = knowing(model, TREES[tree])
    runs = [assert_exact(decoder, case, model) for case in cases(model)]
    assert {n for ours in runs for n in ours.accepted} == {0, 1, 2, 3}


@pytest.mark.parametrize("reach", [1, 2])
def test_with_a_tree_for_fewer_prompt_tokens_than_there_are(reach: int) -> None:
    model = staged("llama")
    decoder = knowing(model, search(general(reach), ROWS))
    runs = [assert_exact(decoder, case, model) for case in cases(model)]
    assert max(n for ours in runs for n in ours.accepted) == reach


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "opt-350m-like"])
def test_in_one_fixed_shape(name: str) -> None:
    model = staged(name)
    for variant in ("plain", "prefix", "several exits"):
        decoder = knowing(model, UNEVEN, **VARIANTS[variant])
        for case in some_cases(model):
            ours = decode_case(decoder, case, model, fixed_rows=decoder.rows)
            truth = greedy(case, model, fixed_rows=decoder.rows)
            assert ours.output_ids == truth.output_ids == greedy(case, model).output_ids


def test_the_order_of_examples_changes_nothing() -> None:
    model = staged("llama")
    assert_order_is_nothing(prompted(model), list(cases(model))[:6], model)


# What a pass guesses


class Watched(Knowing):
    """Compares each step's guesses with those that the text alone would give."""

    checks = 0

    def learn(self, session: Session, verified: Verified) -> None:
        super().learn(session, verified)
        if verified.draft.insertions:
            fresh = Session(self.model, CAPACITY, spare=self.rows)
            text = session.tokens
            truth = self.guesses(fresh, text, [len(text) - 2])[0, : self._reach]
            assert torch.equal(PromptTokensProposer._guessed(self), truth.topk(self.top).indices)
            Watched.checks += 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral-window", "gpt2"])
def test_guesses_are_those_behind_the_last_token_accepted(name: str, variant: str) -> None:
    """Whatever tree the pass had: positions, masks, rows, readout."""
    model = staged(name)
    Watched.checks = 0
    for tree in TREES.values():
        decoder = Watched(prompts_of(model, **VARIANTS[variant]), tree, model, {})
        assert_exact(decoder, Case("plain", tokens(9, 1), Limits(24)), model)
    assert Watched.checks > 15


def test_what_is_cached_is_the_text_alone() -> None:
    model = staged("llama")
    decoder = knowing(model, UNEVEN, **VARIANTS["prefix"])
    session = Session(model, CAPACITY, spare=decoder.rows)
    decoder.decode(session, Request(tokens(9, 1), Limits(20), CLOCK))
    fresh = Session(model, CAPACITY)
    fresh.forward(fresh.ids(session.tokens[: session.cached]))
    for layer in range(model.n_layers):
        for ours, truth in zip(session.cache.rows(layer), fresh.cache.rows(layer), strict=True):
            assert_near(ours, truth)


def test_the_last_accepted_nodes_prompt_tokens_decide_which_tree_comes_next() -> None:
    model = staged("llama")
    seen: set[tuple[int, int, int]] = set()  # state, last node, next state

    class Followed(Knowing):
        def learn(self, session: Session, verified: Verified) -> None:
            before, path = self._reach, verified.outcome.path
            super().learn(session, verified)
            if before and verified.draft.insertions:
                seen.add((before, path[-1] if path else -1, self._reach))

        def propose(self, session: Session, room: int) -> Draft:
            draft = super().propose(session, room)
            if self._reach and room >= 3:
                assert draft.parents == UNEVEN.states[self._reach - 1].tree.parents
            return draft

    decoder = Followed(prompts_of(model), UNEVEN, model, {})
    for case in cases(model):
        assert_exact(decoder, case, model)
    assert all(UNEVEN.states[k - 1].prompts[1 + node] == after for k, node, after in seen)
    assert {k for k, _, _ in seen} == {after for _, _, after in seen} == {1, 2, 3}


def test_the_first_pass_has_all_prompt_tokens_and_nothing_to_verify() -> None:
    model = staged("llama")
    ours = decode_case(prompted(model, UNEVEN), Case("plain", tokens(9), Limits(12)), model)
    assert ours.rows[0] == 1 + 3
    assert ours.proposed[0] == 0
    assert ours.inserted[0] == ((0, 3),)


def test_a_tree_never_reaches_beyond_the_end_of_the_output() -> None:
    model = staged("llama")
    for tree in TREES.values():
        decoder = prompted(model, tree)
        for n in range(2, 7):
            ours = decode_case(decoder, Case("short", tokens(9), Limits(n)), model)
            lost = sum(ours.accepted) + len(ours.accepted) + 1 - len(ours.output_ids)
            assert lost == 0


def test_rows_are_counted_with_every_embedding() -> None:
    model = staged("llama")
    assert prompted(model, UNEVEN).rows == 5 + 9
    assert prompted(model, UNEVEN, chain=Chain(3, 4)).rows == 5 + 9 * 4
    assert prompted(model, UNEVEN, **VARIANTS["prefix"]).rows == 5 + 9 * 2 + 3 * 2


def test_a_pattern_is_a_chain_behind_every_node() -> None:
    model = staged("llama")
    pattern = ChainPattern(Tree(((0,), (0, 0), (1,))), (1, 2, 0, 1), prompts_of(model))
    assert pattern.chains == ((0, 1), (1, 2), (3, 0), (3, 1))
    assert pattern.insertion.sees == ((0,), (0, 1), (0, 1, 5), (0, 3))
    assert pattern.insertion.depths == (1, 2, 3, 2)
    assert pattern.rows == 8
    prefixed = ChainPattern(Tree(((0,),)), (1, 2), prompts_of(model, chain=Chain(2, 2, prefix=1)))
    # Rows: 0 and 1 tokens, 2 3 the first chain, 4 5 6 7 the second, 8 9 the prefix.
    assert prefixed.insertion.sees == (
        *((0, 8), (0, 8)),
        *((0, 1, 8), (0, 1, 8), (0, 1, 4, 9), (0, 1, 5, 9)),
        *((), ()),
    )
    assert prefixed.insertion.depths == (1, 1, 2, 2, 3, 3, 3, 3)


def test_known_tokens_have_prompt_tokens_behind_the_last_alone() -> None:
    pattern = first_pattern(3, 3, prompts_of(staged("llama")))
    assert pattern.tree.parents == (-1, 0)
    assert pattern.chains == ((0, 0), (0, 0), (0, 3))
    assert pattern.insertion.sees == ((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4))


def test_a_draft_that_was_cut_has_the_rows_of_a_smaller_one() -> None:
    model = staged("mistral-window")
    prompts = prompts_of(model, **VARIANTS["prefix"])
    state = UNEVEN.states[2]
    passes = []
    for depth, room in ((3, 1), (1, 1)):
        kept = state.within(depth)
        pattern = ChainPattern(kept.tree, kept.prompts, prompts)
        nodes = tokens(len(kept.tree), 6)
        whole = Draft.tree(nodes, kept.tree.parents, insertions=(pattern.insertion,))
        session = Session(model, CAPACITY, spare=40)
        session.reset(tokens(9, 1))
        session.prefill()
        session.tokens.append(17)
        draft = whole.within(room)
        assert draft.tokens == tuple(nodes[:2])
        passes.append(run_pass(session, draft))
    assert passes[0].shape[1] == 3 + 2 * (2 + 1 + 3) + 6
    # What the six rows of the prefix give themselves, nobody reads.
    assert_near(passes[0][:, :-6], passes[1][:, :-6])


def accepted(decoder: PromptTokensProposer, model: StagedModel) -> int:
    several = [Case(str(seed), tokens(9, seed), Limits(30)) for seed in range(6)]
    return sum(sum(assert_exact(decoder, case, model).accepted) for case in several)


def test_worse_prompt_tokens_are_accepted_less_and_change_no_output(
    trained: tuple[Loaded, Path],
) -> None:
    loaded, folder = trained
    decoder = PromptTokens(addon=str(folder)).prepare(Setup(loaded, CAPACITY))
    good = accepted(decoder, loaded.staged)
    noise = 3 * torch.randn_like(decoder.prompts.embeddings)
    worse = replace(decoder.prompts, embeddings=noise)
    assert (
        accepted(PromptTokensProposer(worse, DYNAMIC, loaded.staged, {}), loaded.staged)
        < 0.7 * good
    )
    assert good > 40


def test_chains_that_stand_in_the_wrong_place_are_accepted_less(
    trained: tuple[Loaded, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, folder = trained
    good = accepted(PromptTokens(addon=str(folder)).prepare(Setup(loaded, CAPACITY)), loaded.staged)
    monkeypatch.setattr(Chain, "depths", (4, 5, 6))
    moved = PromptTokens(addon=str(folder)).prepare(Setup(loaded, CAPACITY))
    assert accepted(moved, loaded.staged) < good


# Trees


def test_the_tree_is_the_one_asked_for_then_the_one_beside_then_a_general_one(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    loaded, folder = trained
    setup = Setup(loaded, CAPACITY)

    def widest(**options: Any) -> int:
        return PromptTokens(addon=str(folder), **options).prepare(setup).patterns[2][-1].rows

    assert widest() == ROWS
    UNEVEN.save(folder / "tree.json")
    assert widest() == UNEVEN.states[2].rows()
    Tree(((0,), (0, 0))).save(tmp_path / "static.json")
    assert widest(tree=str(tmp_path / "static.json")) == 3 + 3 * 3
    (folder / "tree.json").unlink()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (Tree(((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))), "4 deep, but guesses reach 3"),
        (DynamicTree.uniform(Tree(((0,),)), 5), "states for 5 prompt tokens, but 3 are"),
        (Tree(((300,),)), "takes 301 guesses at a distance, but the vocabulary has 300"),
    ],
)
def test_trees_that_ask_for_too_much_are_refused(
    trained: tuple[Loaded, Path], tmp_path: Path, tree: Any, message: str
) -> None:
    loaded, folder = trained
    tree.save(tmp_path / "tree.json")
    asked = PromptTokens(addon=str(folder), tree=str(tmp_path / "tree.json"))
    with pytest.raises(ConfigError, match=message):
        asked.prepare(Setup(loaded, CAPACITY))


# The command line


def test_drawing_from_the_likeliest_token_alone_is_greedy_decoding() -> None:
    model = staged("llama")
    decoder = knowing(model)
    session = Session(model, CAPACITY, spare=decoder.rows)
    chooser = Chooser(Target(kind="top-p", top_p=1e-6), torch.Generator().manual_seed(3))
    drawn = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK, chooser))
    greedy = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK))
    assert drawn.output_ids == greedy.output_ids


def test_the_run_says_what_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stock_model("llama", vocab_size=300, max_position_embeddings=900).save_pretrained("model")
    tokenizer(300, 900).save_pretrained("model")
    adapter(tmp_path / "published")
    words = ["decode", "--method", "prompt-tokens", "--model", "./model", "--task", "gsm8k"]
    words += ["--data", "builtin", "--limit", "1", "--max-new-tokens", "12", "--out", "run"]
    assert run([*words, "--set", "addon=published", "--warmup", "0"]) == 0
    assert "identical" in capsys.readouterr().out
    told = read_run(tmp_path / "run").header.methods["prompt-tokens"].loaded
    assert set(told) == {"addon", "tree"}
    assert run([*words[:-2], "--out", "none", "--warmup", "0"]) == 2
    assert "ppdbench train prompt-tokens --model ./model" in capsys.readouterr().err


# As a draft model's


class KnowingDrafter(PromptedDrafter):
    """A draft model whose prompt tokens often know what it is going to say."""

    twin: StagedModel

    def _drafted(self, pending: list[int], limit: int) -> Any:
        text = [*self.draft.tokens, *pending]
        ahead = min(limit + 3, CAPACITY - len(text))
        if isinstance(self.inner, Knowing) and ahead > 0:
            self.inner.truth = [*text, *free(self.twin, text, ahead)]
        return super()._drafted(pending, limit)


def drafters(
    name: str, folder: Path, tree: DynamicTree = DYNAMIC, **options: Any
) -> tuple[ModelDrafter, KnowingDrafter, StagedModel]:
    """The same draft model without prompt tokens and with some that often guess right."""
    target, draft = staged(name), near(name)
    setup = Setup(as_loaded(target), CAPACITY)
    options = {"draft_model": "near", "draft_length": 4, **options}
    plain = ModelDrafter(Speculative(**options), as_loaded(near(name)), setup)
    asked = Speculative(draft_addon=str(adapter(folder)), **options)
    prompted = KnowingDrafter(asked, as_loaded(draft), setup)
    prompted.twin = plain.draft.model
    prompted.inner = Knowing(prompted.inner.prompts, tree, draft, {})
    prompted.draft = Session(draft, CAPACITY, spare=prompted.inner.rows)
    return plain, prompted, target


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mistral-window"])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_draft_model_drafts_the_same_with_prompt_tokens(
    name: str, length: int, tmp_path: Path
) -> None:
    plain, prompted, target = drafters(name, tmp_path / "p", draft_length=length)
    for case in itertools.islice(cases(target), 0, None, 2):
        ours = assert_exact(prompted, case, target)
        theirs = assert_exact(plain, case, target)
        assert (ours.proposed, ours.accepted) == (theirs.proposed, theirs.accepted)


def test_with_prompt_tokens_a_draft_takes_fewer_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, prompted, target = drafters("llama", tmp_path / "p", UNEVEN, draft_length=6)
    passes: Counter[StagedModel] = Counter()

    def count(name: str) -> None:
        real = getattr(StagedModel, name)

        def counted(self: StagedModel, *arguments: Any, **options: Any) -> Any:
            passes[self] += 1
            return real(self, *arguments, **options)

        monkeypatch.setattr(StagedModel, name, counted)

    prompted.twin = near("llama")
    for name in ("run", "pass_and_read"):  # layers, and all of them with what is read out
        count(name)
    for drafter in (plain, prompted):
        decode_case(drafter, Case("plain", tokens(9, 1), Limits(40)), target)
    assert passes[prompted.draft.model] < 0.8 * passes[plain.draft.model]


def test_the_draft_models_cache_is_that_of_a_fresh_prefill(tmp_path: Path) -> None:
    checks = 0

    class Checked(KnowingDrafter):
        def propose(self, session: Session, room: int) -> Draft:
            nonlocal checks
            draft = super().propose(session, room)
            held = self.draft.tokens
            assert held == [*session.tokens, *draft.tokens][: len(held)]
            assert len(held) == self.draft.cached
            fresh = Session(self.draft.model, CAPACITY)
            fresh.forward(fresh.ids(held))
            for layer in range(fresh.model.n_layers):
                rows = zip(self.draft.cache.rows(layer), fresh.cache.rows(layer), strict=True)
                for ours, truth in rows:
                    assert_near(ours, truth)
            checks += 1
            return draft

    _, prompted, target = drafters("llama", tmp_path / "p")
    prompted.__class__ = Checked
    for case in cases(target):
        assert_exact(prompted, case, target)
    assert checks > 40


def test_sampled_targets_take_drafts_that_were_chosen(tmp_path: Path) -> None:
    _, prompted, target = drafters("llama", tmp_path / "p")
    session = Session(target, CAPACITY, spare=prompted.rows)
    chooser = Chooser(Target(kind="top-p"), torch.Generator().manual_seed(3))
    ours = prompted.decode(session, Request(tokens(9), Limits(24), CLOCK, chooser))
    assert len(ours.output_ids) == 24
    assert sum(ours.proposed) > 0


def test_a_draft_model_that_gives_nan_is_named(tmp_path: Path) -> None:
    broken = stock_model("llama")
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    model = staged("llama")
    addon = str(adapter(tmp_path / "p"))
    asked = Speculative(draft_model="broken", draft_addon=addon, draft_length=4)
    setup = Setup(as_loaded(model), CAPACITY)
    drafter = PromptedDrafter(asked, as_loaded(StagedModel(broken)), setup)
    with pytest.raises(NumericalError, match="NaN or infinite logits of draft_model=broken"):
        decode_case(drafter, Case("plain", tokens(9), Limits(12)), model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_tree": "tree.json"}, "draft_tree is for prompt tokens; give draft_addon too"),
        ({"draft_addon": "p", "confidence": 0.3}, "confidence stops drafts token by token"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Speculative(draft_model="near", **options)


def test_a_bad_addon_of_the_draft_model_is_told_as_such(tmp_path: Path) -> None:
    asked = Speculative(draft_model="near", draft_addon=str(tmp_path))
    model = as_loaded(staged("llama"))
    with pytest.raises(ConfigError, match=r"speculative: draft_addon: .*addon\.json is missing"):
        PromptedDrafter(asked, model, Setup(model, CAPACITY))


def test_the_method_is_listed_as_trained() -> None:
    method = METHODS.get("prompt-tokens")
    assert (method.exact, method.trained) == (True, True)
    assert [option.name for option in method.options()] == ["addon", "tree"]
