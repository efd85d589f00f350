"""Medusa: what the heads compute, the tree they fill, and the output that stays greedy's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, silu

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Guesser, Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.addons import save_addon
from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.medusa.network import load_medusa
from ppdbench.methods.medusa.plan import MedusaPlan
from ppdbench.methods.medusa.strategy import Medusa, MedusaProposer
from ppdbench.methods.medusa.train import MedusaObjective
from ppdbench.runs.store import read_run
from ppdbench.testing import assert_order_is_nothing, ends_inside_drafts
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode, free
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB, staged, tokens

HEADS = 3
PROMPTS = [tokens(9, seed) for seed in range(12)]


def setup(model: StagedModel) -> Setup:
    return Setup(Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, ""), CAPACITY)


def published(
    width: int, heads: int = HEADS, layers: int = 1, vocab: int = VOCAB
) -> dict[str, Tensor]:
    """Tensors of heads under the published names, large enough to have opinions."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=draw)

    found = {}
    for h in range(heads):
        for b in range(layers):
            found[f"{h}.{b}.linear.weight"] = some(width, width)
            found[f"{h}.{b}.linear.bias"] = some(width)
        found[f"{h}.{layers}.weight"] = some(vocab, width)
    return found


def written(folder: Path, tensors: dict[str, Tensor]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return str(folder)


def random_heads(model: StagedModel, folder: Path, **options: Any) -> MedusaProposer:
    addon = written(folder, published(model.adapter.head_width))
    return Medusa(addon=addon, **options).prepare(setup(model))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """A tiny model and heads that learnt its own outputs after some prompts."""
    folder = tmp_path_factory.mktemp("trained")
    stock = stock_model("llama")
    texts = [[*prompt, *free(staged("llama"), prompt, 36)] for prompt in PROMPTS]
    objective = MedusaObjective(stock, MedusaPlan(heads=HEADS, loss="ce"), 44)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-2)
    for t in range(100):
        objective(torch.tensor(texts), t, 100)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
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
    decode(watched, Case("own", PROMPTS[0], Limits(30)), model)
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


# The heads


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma2", "opt-350m-like"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_stacked_heads_compute_what_each_head_does_alone(
    family: str, layers: int, tmp_path: Path
) -> None:
    model = staged(family)
    width = model.adapter.head_width
    tensors = published(width, layers=layers)
    heads = load_medusa(written(tmp_path, tensors), setup(model).target).heads
    hidden = torch.randn(5, model.hidden_size)
    normed = model.adapter.norm(hidden)
    for h, ours in enumerate(heads.logits(hidden)):
        x = normed
        for b in range(layers):
            weight, bias = (tensors[f"{h}.{b}.linear.{part}"] for part in ("weight", "bias"))
            x = x + silu(linear(x, weight, bias))
        truth = model.adapter.cap(linear(x, tensors[f"{h}.{layers}.weight"]))
        torch.testing.assert_close(ours, truth, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("rank", [None, 0, 3])
def test_heads_guess_after_loading_what_they_guessed_in_training(
    rank: int | None, tmp_path: Path
) -> None:
    stock, words = stock_model("llama"), tokenizer(300, 96)
    objective = MedusaObjective(stock, MedusaPlan(heads=2, layers=2, rank=rank), 20)
    for parameter in objective.parameters():
        parameter.normal_(0, 0.2)
    objective.save(tmp_path, words, None)
    text = torch.tensor([tokens(20, 3)])
    truth = [logits for logits, _ in objective._guesses(text)]
    loaded = take_over(ModelSpec(name="tiny"), stock, words)
    decoder = Medusa(addon=str(tmp_path)).prepare(Setup(loaded, CAPACITY))
    session = Session(loaded.staged, CAPACITY)
    found = decoder.guesses(session, text[0].tolist(), range(18))
    for head in range(2):
        theirs = truth[head][0, :18]
        torch.testing.assert_close(found[:, head], theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "my.bin"])
def test_published_files_are_read_by_name_or_by_folder(name: str, tmp_path: Path) -> None:
    """Configurations beside them say two heads where there are five."""
    tensors = published(32, heads=5)
    if name.endswith("safetensors"):
        save_file(tensors, tmp_path / name)
    else:
        torch.save(tensors, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    target = setup(staged("llama")).target
    assert load_medusa(str(tmp_path / name), target).heads.count == 5
    if name != "my.bin":
        assert load_medusa(str(tmp_path), target).heads.count == 5


# Typical acceptance


def steps(decoder: MedusaProposer, model: StagedModel) -> int:
    """Passes that the same number of tokens took."""
    return sum(len(decode(decoder, Case("", p, Limits(36)), model).accepted) for p in PROMPTS)


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


BAD_TENSORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "a missing bias": (
        {k: v for k, v in published(32).items() if k != "1.0.linear.bias"},
        r"lacks the tensor 1\.0\.linear\.bias",
    ),
    "a missing head": (
        {k: v for k, v in published(32).items() if not k.startswith("1.")},
        r"lacks the tensor 1\.0\.linear\.weight",
    ),
    "one block more": (
        {**published(32), "0.1.linear.bias": torch.zeros(32)},
        r"unexpected tensors: 0\.1\.linear\.bias",
    ),
    "another vocabulary": (
        {**published(32), "2.1.weight": torch.zeros(90, 32)},
        r"2\.1\.weight has shape \[90, 32\], not \[96, 32\]",
    ),
    "another width": (
        published(16),
        r"0\.0\.linear\.weight has shape \[16, 16\], not \[32, 32\]",
    ),
    "something else": ({"lm_head": torch.zeros(3)}, "holds no Medusa heads"),
}


@pytest.mark.parametrize("what", sorted(BAD_TENSORS))
def test_wrong_tensors_are_named(what: str, tmp_path: Path) -> None:
    tensors, message = BAD_TENSORS[what]
    with pytest.raises(ConfigError, match=message):
        load_medusa(written(tmp_path, tensors), setup(staged("llama")).target)


class Harmful:
    def __reduce__(self) -> Any:
        return (os.system, ("true",))


def test_a_published_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    torch.save({**published(32), "more": Harmful()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ConfigError, match=r"medusa_lm_head\.pt is refused"):
        load_medusa(str(tmp_path), setup(staged("llama")).target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0, "layers": 1}, r"addon\.json: heads is 0; use 1 or more"),
        ({"heads": 1, "layers": "1"}, r"addon\.json: layers is '1'; use 0 or more"),
        ({"heads": 1, "layers": 1, "rank": -1}, r"addon\.json: rank is -1; use 0 or more"),
        ({"heads": 2, "layers": 1}, r"lacks the tensor 1\.0\.linear\.weight"),
        ({"heads": 1, "layers": 1, "rank": 2}, r"lacks the tensor 0\.1\.down"),
    ],
)
def test_an_addon_whose_options_do_not_fit_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    stock, words = stock_model("llama"), tokenizer(300, 96)
    save_addon(tmp_path, "medusa", stock, words, published(32, heads=1), options)
    loaded = take_over(ModelSpec(name="tiny"), stock, words)
    with pytest.raises(ConfigError, match=message):
        load_medusa(str(tmp_path), loaded)


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
