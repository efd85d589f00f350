"""Medusa: the tree that heads fill, and the output that stays greedy's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Guesser, Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.medusa.plan import MedusaPlan
from ppdbench.methods.medusa.strategy import Medusa, MedusaProposer
from ppdbench.methods.medusa.train import MedusaObjective
from ppdbench.runs.store import read_run
from ppdbench.testing import assert_order_is_nothing, ends_inside_drafts
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, free
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB, staged, tokens
from tests.methods.medusa.made import HEADS, published, random_heads, setup, written
from tests.training.made import learn

PROMPTS = [tokens(9, seed) for seed in range(12)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """A tiny model and heads that learnt its own outputs after some prompts."""
    folder = tmp_path_factory.mktemp("trained")
    stock = stock_model("llama")
    texts = [[*prompt, *free(staged("llama"), prompt, 36)] for prompt in PROMPTS]
    objective = MedusaObjective(stock, MedusaPlan(heads=HEADS, loss="ce"), 44)
    learn(objective, torch.tensor(texts), 100)
    words = tokenizer(300, 96)
    objective.save(folder, words, None)
    return take_over(ModelSpec(name="tiny"), stock, words), folder


def ready(trained: tuple[Loaded, Path], **options: Any) -> MedusaProposer:
    loaded, folder = trained
    return Medusa(addon=str(folder), **options).prepare(Setup(loaded, CAPACITY))


def accepted(decoder: MedusaProposer, model: StagedModel) -> float:
    """Accepted tokens per step; every output is checked to be greedy's."""
    results = [assert_exact(decoder, Case("own", p, Limits(36)), model) for p in PROMPTS]
    return sum(sum(r.accepted) for r in results) / sum(len(r.accepted) for r in results)


# The output


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_output_is_greedy_decodings(name: str, tmp_path: Path) -> None:
    model = staged(name)
    decoder = random_heads(model, tmp_path)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "llama"])
def test_in_one_fixed_shape_the_output_is_the_same(name: str, tmp_path: Path) -> None:
    model = staged(name)
    decoder = random_heads(model, tmp_path)
    for case in cases(model):
        assert_exact(decoder, case, model, fixed_rows=decoder.rows)


def test_what_is_accepted_ends_at_eos_and_at_limits(trained: tuple[Loaded, Path]) -> None:
    decoder, model = ready(trained), trained[0].staged
    inside = ends_inside_drafts(decoder, PROMPTS[:4], model)
    assert inside > 10, "no end fell inside a draft"


def test_the_order_of_examples_changes_nothing(trained: tuple[Loaded, Path]) -> None:
    model = trained[0].staged
    found = assert_order_is_nothing(ready(trained), list(cases(model))[:5], model)
    assert any(map(sum, found))


def test_trained_heads_are_accepted(trained: tuple[Loaded, Path]) -> None:
    assert accepted(ready(trained), trained[0].staged) > 2.5


def changed(
    trained: tuple[Loaded, Path], folder: Path, change: Callable[[dict[str, Tensor]], None]
) -> tuple[Loaded, Path]:
    """The same model with heads whose stored tensors are other ones."""
    loaded, original = trained
    shutil.copytree(original, folder)
    tensors = load_file(folder / "addon.safetensors")
    change(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "addon.safetensors")
    return loaded, folder


def test_disturbed_heads_are_accepted_less_and_the_output_stays(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    def disturb(tensors: dict[str, Tensor]) -> None:
        order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))
        tensors["1.1.weight"] = tensors["1.1.weight"][order]

    model = trained[0].staged
    whole = accepted(ready(trained), model)
    assert accepted(ready(changed(trained, tmp_path / "disturbed", disturb)), model) < whole - 1


def test_heads_one_place_off_are_hardly_accepted(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    def roll(tensors: dict[str, Tensor]) -> None:
        old = dict(tensors)
        for name in old:
            head, part = name.split(".", 1)
            tensors[name] = old[f"{(int(head) - 1) % HEADS}.{part}"]

    model = trained[0].staged
    whole = accepted(ready(trained), model)
    assert accepted(ready(changed(trained, tmp_path / "rolled", roll)), model) < whole / 4


# The draft


class Watched(MedusaProposer):
    """Keeps every draft with the text that it was made for."""

    seen: list[tuple[list[int], Draft]]

    def propose(self, session: Session, room: int) -> Draft:
        draft = super().propose(session, room)
        self.seen.append((list(session.tokens), draft))
        return draft


def test_every_draft_is_the_tree_filled_with_the_heads_guesses_there(
    trained: tuple[Loaded, Path],
) -> None:
    decoder, model = ready(trained), trained[0].staged
    watched = Watched(decoder.heads, decoder.tree, {}, 0.0)
    watched.seen = []
    decode_case(watched, Case("own", PROMPTS[0], Limits(30)), model)
    assert isinstance(decoder, Guesser)
    session = Session(model, CAPACITY, spare=decoder.rows)
    for text, draft in watched.seen:
        with torch.inference_mode():
            scores = decoder.guesses(session, text, [0, len(text) - 2])[1]
        filled = decoder.tree.fill(scores.topk(decoder.tree.top).indices)
        assert draft == Draft.tree(filled, decoder.tree.parents)
    assert len(watched.seen) > 5


def test_heads_of_an_earlier_layer_decode_as_they_were_trained(tmp_path: Path) -> None:
    stock, words = stock_model("llama"), tokenizer(300, 96)
    objective = MedusaObjective(stock, MedusaPlan(heads=2, layers=0, after=2), 16)
    objective.save(tmp_path, words, None)
    text = tokens(16, 1)
    with torch.no_grad():
        trained = torch.stack(
            [logits[0, :14] for logits, _ in objective._guesses(torch.tensor([text]))]
        )
    loaded = take_over(ModelSpec(name="tiny"), stock, words)
    decoder = ready((loaded, tmp_path))
    session = Session(loaded.staged, CAPACITY, spare=decoder.rows)
    with torch.inference_mode():
        decoded = decoder.guesses(session, text, range(14))
    torch.testing.assert_close(decoded, trained.transpose(0, 1), atol=1e-4, rtol=1e-4)
    for case in list(cases(loaded.staged))[:6]:
        assert_exact(decoder, case, loaded.staged)


def test_the_tree_is_the_one_asked_for_then_the_addons_own_then_a_general_one(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    loaded, folder = trained
    general = ready(trained).tree
    assert 1 < general.depth <= HEADS
    beside, asked = Tree(((0,), (1,), (0, 0))), Tree(((0,), (0, 2)))
    beside.save(folder / "tree.json")
    asked.save(tmp_path / "asked.json")
    try:
        own = ready(trained)
        other = ready(trained, tree=str(tmp_path / "asked.json"))
    finally:
        (folder / "tree.json").unlink()
    assert own.tree == beside
    assert own.rows == 4
    assert other.tree == asked
    assert own.loaded["addon"] == other.loaded["addon"]
    assert own.loaded["tree"] != other.loaded["tree"]
    accepted(other, loaded.staged)


# Typical acceptance


def steps(decoder: MedusaProposer, model: StagedModel) -> int:
    """Passes that the same number of tokens took."""
    return sum(len(decode_case(decoder, Case("", p, Limits(36)), model).accepted) for p in PROMPTS)


def test_typical_acceptance_takes_fewer_steps_and_is_not_exact(tmp_path: Path) -> None:
    model = staged("llama")
    exact = random_heads(model, tmp_path)
    loose = random_heads(model, tmp_path, typical=1e-3)
    assert exact.acceptance is None
    assert loose.acceptance is not None
    assert steps(loose, model) < 0.8 * steps(exact, model)


@pytest.mark.parametrize(("typical", "exact"), [("0", True), ("1e-3", False)])
def test_what_is_kept_as_typical_is_reported_as_inexact(
    typical: str,
    exact: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
    written(tmp_path / "heads", published(32, vocab=300))
    words = ["--model", shape, "--data", "builtin", "--limit", "3", "--max-new-tokens", "24"]
    words += ["--set", "addon=heads", "--set", f"typical={typical}", "--format", "json"]
    assert run(["decode", "--method", "medusa", *words, "--out", "run"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"] is exact
    assert found["mismatch"] == 0
    stored = read_run(tmp_path / "run")
    assert stored.header.methods["medusa"].exact is exact
    verdicts = {sample.verdict for sample in stored.samples}
    assert ("inexact" in verdicts) is not exact


# What is refused


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon 1": ({"typical": 1.0}, "typical=1.0; use 0"),
    "a negative epsilon": ({"typical": -0.1}, "typical=-0.1; use 0"),
    "no addon": ({}, "medusa: no add-on for tiny; train one with `ppdbench train medusa"),
    "an empty folder": ({"addon": "."}, "holds no trained medusa: addon.json is missing"),
    "no folder": ({"addon": "nowhere"}, "nowhere holds no trained medusa"),
}


@pytest.mark.parametrize("what", sorted(BAD_OPTIONS))
def test_impossible_options_are_errors_that_say_what_to_do(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, message = BAD_OPTIONS[what]
    with pytest.raises(ConfigError, match=message):
        Medusa(**options).prepare(setup(staged("llama")))


TREES: dict[str, tuple[list[list[int]], str]] = {
    "too deep": ([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], "4 deep, but guesses reach 3 tokens"),
    "too large": ([[r] for r in range(CAPACITY + 1)], f"{CAPACITY + 1} nodes.*{CAPACITY}"),
    "too many guesses": ([[VOCAB]], f"{VOCAB + 1} guesses at a distance.*{VOCAB} entries"),
    "an orphan": ([[0, 1]], "no parent"),
    "twins": ([[0], [0]], "twice"),
}


@pytest.mark.parametrize("what", sorted(TREES))
def test_trees_that_the_heads_cannot_fill_are_refused(what: str, tmp_path: Path) -> None:
    paths, message = TREES[what]
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps({"format": "ppdbench-tree", "version": 1, "paths": paths}))
    with pytest.raises(ConfigError, match=message):
        random_heads(staged("llama"), tmp_path, tree=str(tree))


def test_drawing_from_the_likeliest_token_alone_is_greedy_decoding(
    trained: tuple[Loaded, Path],
) -> None:
    decoder, model = ready(trained), trained[0].staged
    assert decoder.trees
    session = Session(model, CAPACITY, spare=decoder.rows)
    chooser = Chooser(Target(kind="top-p", top_p=1e-6), torch.Generator().manual_seed(3))
    drawn = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK, chooser))
    greedy = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK))
    assert drawn.output_ids == greedy.output_ids


def chain(folder: Path) -> str:
    path = folder / "chain.json"
    Tree(((0,), (0, 0), (0, 0, 0))).save(path)
    return str(path)


def test_a_tree_without_branches_is_a_chain_that_sampling_can_verify(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    decoder, model = ready(trained, tree=chain(tmp_path)), trained[0].staged
    assert not decoder.trees
    assert accepted(decoder, model) > 2
    one = Chooser(Target(kind="top-k", top_k=1), torch.Generator().manual_seed(3))
    session = Session(model, CAPACITY, spare=decoder.rows)
    ours = decoder.decode(session, Request(PROMPTS[0], Limits(24), CLOCK, one))
    assert ours.output_ids == free(model, PROMPTS[0], 24)
    assert sum(ours.accepted) > 0


def test_typical_acceptance_of_a_chain_is_refused_where_tokens_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "heads", published(32, vocab=300))
    words = ["--model", "synthetic:layers=3,hidden=32,heads=2,vocab=300", "--data", "builtin"]
    words += ["--limit", "1", "--max-new-tokens", "4", "--target", "top-p"]
    words += ["--set", "addon=heads", "--set", f"tree={chain(tmp_path)}", "--set", "typical=0.1"]
    assert run(["decode", "--method", "medusa", *words]) == 2
    assert "medusa keeps tokens by a rule of its own" in capsys.readouterr().err


def test_it_is_listed_as_exact_and_trained() -> None:
    method = METHODS.get("medusa")
    assert method.exact
    assert method.trained
    built = method.build({"addon": "x", "typical": "0.1"})
    assert built == Medusa(addon="x", typical=0.1)


def test_the_first_draft_follows_the_prompt_alone(trained: tuple[Loaded, Path]) -> None:
    """A second sequence starts without what the first left behind."""
    decoder, model = ready(trained), trained[0].staged
    session = Session(model, CAPACITY, spare=decoder.rows)
    first = [decoder.decode(session, Request(p, Limits(8), CLOCK)) for p in PROMPTS[:2]]
    again = decoder.decode(session, Request(PROMPTS[0], Limits(8), CLOCK))
    assert again.accepted == first[0].accepted
