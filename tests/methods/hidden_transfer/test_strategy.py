"""Hidden transfer: where pseudo states stand, what they see, and the output that stays greedy's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppdbench.decoding.decoder import Guesser, Request, Setup
from ppdbench.decoding.draft import EMPTY
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill, Verified, Verifier
from ppdbench.decoding.sampling import GREEDY, Chooser, Target
from ppdbench.decoding.verify import Outcome
from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.hidden_transfer.network import TransferMatrices, load_transfer
from ppdbench.methods.hidden_transfer.plan import TransferPlan
from ppdbench.methods.hidden_transfer.strategy import HiddenTransfer, HiddenTransferProposer
from ppdbench.methods.hidden_transfer.train import TransferObjective
from ppdbench.testing import assert_order_is_nothing, ends_inside_drafts
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, free
from tests.families import FAMILIES, stock_model
from tests.helpers import assert_near, staged, tokens
from tests.training.made import learn

TREE = Tree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 1)))
CHAIN = Tree(((0,), (0, 0), (0, 0, 0)))
LAYERS = (1, 2, 3)
PROMPTS = [tokens(9, seed) for seed in range(8)]
TEXT = tokens(24, seed=40)


def random_transfer(layers: tuple[int, ...] = LAYERS, size: int = 32) -> TransferMatrices:
    draw = torch.Generator().manual_seed(0)
    some = [torch.eye(size) + 0.2 * torch.randn(size, size, generator=draw) for _ in layers]
    return TransferMatrices(layers, tuple(some))


def transferring(
    tree: Tree = TREE, *, masked: bool = False, **options: Any
) -> HiddenTransferProposer:
    return HiddenTransferProposer(random_transfer(**options), tree, {}, masked=masked)


def session_for(model: StagedModel, decoder: HiddenTransferProposer) -> Session:
    return Session(model, CAPACITY, spare=decoder.rows)


# The output


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_output_is_greedy_decodings(name: str) -> None:
    decoder = transferring(CHAIN if name in ("opt", "qwen3") else TREE)
    for case in list(cases(staged(name)))[::2]:
        assert_exact(decoder, case, staged(name))


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "llama", "mistral-window"])
def test_in_one_fixed_shape_the_output_is_the_same(name: str) -> None:
    decoder = transferring()
    for case in cases(staged(name)):
        assert_exact(decoder, case, staged(name), fixed_rows=decoder.rows)


@pytest.mark.parametrize("layers", [(1,), (3,), (2, 2, 2), (1, 3)], ids=str)
def test_steps_may_be_few_or_transfer_after_one_layer(layers: tuple[int, ...]) -> None:
    for case in list(cases(staged("llama")))[:6]:
        decoder = transferring(TREE.within(len(layers)), layers=layers)
        assert_exact(decoder, case, staged("llama"))


def test_the_order_of_examples_changes_nothing() -> None:
    some = list(cases(staged("llama")))[:5]
    assert_order_is_nothing(transferring(), some, staged("llama"))


def test_every_row_that_is_a_token_has_a_pseudo_state_of_each_step() -> None:
    decoder = transferring()
    assert decoder.rows == 4 * (1 + len(TREE))
    found = decode_case(decoder, Case("own", PROMPTS[0], Limits(12)), staged("llama"))
    assert found.rows[0] == decoder.rows
    assert found.inserted[0] == ((1, 8), (2, 8), (3, 8))
    # A shallower tree asks for fewer steps.
    shallow = transferring(TREE.within(2))
    assert shallow.rows == 3 * (1 + 5)
    assert shallow.taps == (1, 2)


def test_a_chain_may_be_sampled() -> None:
    assert transferring(TREE).trees
    decoder = transferring(CHAIN)
    assert not decoder.trees
    target = Chooser(Target(kind="top-k", top_k=2), torch.Generator().manual_seed(1))
    session = session_for(staged("llama"), decoder)
    found = decoder.decode(session, Request(list(PROMPTS[0]), Limits(12), CLOCK, target))
    assert len(found.output_ids) == 12


# Where pseudo states stand and what they see


def by_hand(model: StagedModel, text: list[int], transfer: TransferMatrices, place: int) -> Tensor:
    """Logits [step, vocab]: the text up to a place, each pseudo state simply the next token."""
    cache, steps = model.new_cache(CAPACITY)
    known, states = text[: place + 1], {}
    step = steps.prefill(len(known))
    model.forward(torch.tensor([known]), step, cache, tap=states.__setitem__)
    rows = states[transfer.layers[0]]
    for i, layer in enumerate(transfer.layers):
        own = states[layer][:, -1:]
        rows = torch.cat([rows, own @ transfer.matrices[i].T], dim=1)
        until = [*transfer.layers, model.n_layers][i + 1]
        cache.truncate(0)
        # Layers below hold nothing: only those from here on are run over the rows.
        rows = model.run(rows, layer, until, steps.prefill(rows.shape[1]), cache)
    return model.logits(rows)[0, -len(transfer) :]


@torch.inference_mode()
@pytest.mark.parametrize("layers", [LAYERS, (2, 2)], ids=str)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_guesses_are_those_of_rows_appended_by_hand(name: str, layers: tuple[int, ...]) -> None:
    model, places = staged(name), [0, 3, 11, 22, 23]
    decoder = transferring(TREE.within(len(layers)), layers=layers)
    found = decoder.guesses(session_for(model, decoder), TEXT, places)
    truth = [by_hand(model, TEXT, decoder.transfer, place) for place in places]
    assert_near(found, torch.stack(truth))


@torch.inference_mode()
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mistral-window", "phi3-window"])
def test_a_pass_makes_the_guesses_that_the_text_alone_would(name: str, masked: bool) -> None:
    """Whichever node is accepted last: behind the prompt, the newest token, a node."""
    model, decoder = staged(name), transferring(masked=masked)
    session, alone = session_for(model, decoder), session_for(model, decoder)
    truth = [*PROMPTS[0], *free(model, PROMPTS[0], 30)]
    session.reset(PROMPTS[0])
    verifier = Verifier(session, GREEDY, decoder.taps)
    session.tokens.append(verifier.first())
    decoder.start(session, Prefill(GREEDY, verifier.prompt_taps))
    depths = set()
    for turn in range(8):
        known = len(session.tokens) - 1  # the newest token is not run yet
        expected = decoder.guesses(alone, truth[:known], [known - 1])[0]
        assert_near(model.logits(decoder._states)[0], expected)
        draft = decoder.propose(session, 10)
        at, planted = -1, {}
        for depth in range(turn % 4):  # accepted as many levels deep as the turn says
            at = next(n for n, p in enumerate(TREE.parents) if p == at)
            planted[at] = truth[known + 1 + depth]
        chosen = [planted.get(n, -1) for n in range(len(TREE))]
        # A twin of a planted token is no twin any more.
        spare = iter(t for t in range(3, 90) if t not in planted.values())
        draft = replace(draft, tokens=tuple(t if t >= 0 else next(spare) for t in chosen))
        verified = verifier.verify(draft, 2)
        depths.add(len(verified.outcome.path))
        session.tokens += [draft.tokens[n] for n in verified.outcome.path]
        session.tokens.append(verified.outcome.token)
        assert session.tokens == truth[: len(session.tokens)]
        decoder.learn(session, verified)
    assert depths == {0, 1, 2, 3}


@torch.inference_mode()
def test_masked_steps_do_not_see_earlier_ones() -> None:
    model, places = staged("llama"), [5, 9, 20]

    def guesses(first: float, masked: bool) -> Tensor:
        decoder = transferring(masked=masked)
        matrices = (first * decoder.transfer.matrices[0], *decoder.transfer.matrices[1:])
        decoder.all_steps = TransferMatrices(LAYERS, matrices)
        return decoder.guesses(session_for(model, decoder), TEXT, places)

    assert torch.equal(guesses(1, True)[:, 1:], guesses(2, True)[:, 1:])
    assert not torch.equal(guesses(1, False)[:, 1:], guesses(2, False)[:, 1:])
    assert_near(guesses(1, True)[:, 0], guesses(1, False)[:, 0])


@torch.inference_mode()
def test_guesses_do_not_depend_on_how_many_are_made_at_once() -> None:
    model, decoder = staged("llama"), transferring()
    places = list(range(len(TEXT)))
    whole = decoder.guesses(session_for(model, decoder), TEXT, places)
    tight = Session(model, len(TEXT) + len(LAYERS))  # room behind one place
    assert_near(decoder.guesses(tight, TEXT, places), whole)
    assert whole.shape == (len(TEXT), 3, model.vocab_size)
    assert isinstance(decoder, Guesser)


@torch.inference_mode()
def test_guesses_reach_as_far_as_was_trained_whatever_the_tree() -> None:
    decoder = transferring(Tree(((0,),)))
    session = session_for(staged("llama"), decoder)
    assert decoder.guesses(session, TEXT, [3]).shape[1] == 3


def test_an_empty_last_draft_teaches_nothing() -> None:
    decoder = transferring()
    decoder._states = before = torch.zeros(1, 3, 32)
    nothing = Verified(EMPTY, Outcome((), 5), (5,), torch.zeros(1, 1, 32), {})
    decoder.learn(session_for(staged("llama"), decoder), nothing)
    assert decoder._states is before


# What is trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """A tiny model and matrices that learnt its own outputs after some prompts."""
    folder = tmp_path_factory.mktemp("trained")
    stock = stock_model("llama")
    texts = torch.tensor([[*prompt, *free(staged("llama"), prompt, 36)] for prompt in PROMPTS])
    objective = TransferObjective(stock, TransferPlan(layers=LAYERS), 44)
    learn(objective, texts, 300)
    words = tokenizer(300, 96)
    objective.save(folder, words)
    return take_over(ModelSpec(name="tiny"), stock, words), folder


def ready(trained: tuple[Loaded, Path], **options: Any) -> HiddenTransferProposer:
    loaded, folder = trained
    return HiddenTransfer(addon=str(folder), **options).prepare(Setup(loaded, CAPACITY))


def accepted(decoder: HiddenTransferProposer, model: StagedModel) -> float:
    """Accepted tokens per step; every output is checked to be greedy's."""
    results = [assert_exact(decoder, Case("own", p, Limits(36)), model) for p in PROMPTS]
    return sum(sum(r.accepted) for r in results) / sum(len(r.accepted) for r in results)


def test_training_raises_what_is_accepted(trained: tuple[Loaded, Path]) -> None:
    model = trained[0].staged
    untrained = TransferMatrices(LAYERS, (torch.eye(32),) * 3)
    learnt = accepted(ready(trained), model)
    assert learnt > 0.5
    assert learnt > 2 * accepted(HiddenTransferProposer(untrained, TREE, {}, masked=False), model)


@pytest.mark.parametrize("step", [0, 1])
def test_a_perturbed_matrix_is_accepted_less_and_changes_no_output(
    trained: tuple[Loaded, Path], step: int
) -> None:
    model, whole = trained[0].staged, ready(trained)
    matrices = list(whole.transfer.matrices)
    matrices[step] = matrices[step].flip(0)
    broken = HiddenTransferProposer(
        TransferMatrices(LAYERS, tuple(matrices)), whole.tree, {}, masked=False
    )
    assert accepted(broken, model) < accepted(whole, model)


def test_what_is_accepted_ends_at_eos_and_at_limits(trained: tuple[Loaded, Path]) -> None:
    decoder, model = ready(trained), trained[0].staged
    inside = ends_inside_drafts(decoder, PROMPTS[:4], model)
    assert inside > 5, "no end fell inside a draft"


# Files


def test_an_add_on_is_read_as_it_was_trained(trained: tuple[Loaded, Path]) -> None:
    loaded, folder = trained
    transfer, home, fingerprint = load_transfer(folder, loaded)
    tensors = load_file(folder / "addon.safetensors")
    assert transfer.layers == LAYERS
    assert home == folder
    assert all(torch.equal(m, tensors[f"step.{i}"]) for i, m in enumerate(transfer.matrices, 1))
    assert ready(trained).loaded["addon"] == fingerprint


def changed(folder: Path, to: Path, options: Any = None, tensors: Any = None) -> str:
    """A copy of an add-on with other options or tensors."""
    header = json.loads((folder / "addon.json").read_text("utf-8"))
    header["options"].update(options or {})
    held = {**load_file(folder / "addon.safetensors"), **(tensors or {})}
    to.mkdir()
    (to / "addon.json").write_text(json.dumps(header), "utf-8")
    save_file({n: t for n, t in held.items() if t is not None}, to / "addon.safetensors")
    return str(to)


BAD: dict[str, tuple[Any, Any, str]] = {
    "a layer too high": ({"layers": [1, 2, 4]}, None, r"after layer 4, .* 4 layers; use 1\.\.3"),
    "no layer at all": ({"layers": []}, None, "after layers none; name one for each step"),
    "falling layers": ({"layers": [1, 3, 2]}, None, "none below the one before"),
    "no list": ({"layers": 3}, None, "layers must be a list"),
    "no numbers": ({"layers": ["1", "2", "3"]}, None, "a list of layer numbers"),
    "a missing matrix": (None, {"step.2": None}, r"lacks the tensor step\.2"),
    "one too many": (None, {"step.4": torch.eye(32)}, r"unexpected tensors: step\.4"),
    "a wrong shape": (None, {"step.1": torch.zeros(32, 31)}, r"step\.1 has shape \[32, 31\]"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_add_ons_that_cannot_work_are_refused_in_one_line(
    what: str, trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    options, tensors, message = BAD[what]
    addon = changed(trained[1], tmp_path / "bad", options, tensors)
    with pytest.raises(ConfigError, match=message) as caught:
        HiddenTransfer(addon=addon).prepare(Setup(trained[0], CAPACITY))
    assert "\n" not in str(caught.value)


def test_another_models_add_on_is_refused(trained: tuple[Loaded, Path]) -> None:
    loaded, folder = trained
    other = replace(loaded, fingerprint="0123456789abcdef")
    with pytest.raises(ConfigError, match="trained for another model"):
        HiddenTransfer(addon=str(folder)).prepare(Setup(other, CAPACITY))


def test_without_an_add_on_the_command_that_makes_one_is_named(
    trained: tuple[Loaded, Path],
) -> None:
    with pytest.raises(ConfigError, match="ppdbench train hidden-transfer"):
        HiddenTransfer().prepare(Setup(trained[0], CAPACITY))


def test_a_tree_deeper_than_the_steps_is_refused(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    deep = Tree(tuple((0,) * depth for depth in range(1, 5)))
    deep.save(tmp_path / "tree.json")
    with pytest.raises(ConfigError, match="4 deep, but guesses reach 3"):
        ready(trained, tree=str(tmp_path / "tree.json"))


def test_the_method_is_listed_as_exact_and_trained() -> None:
    method = METHODS.get("hidden-transfer")
    assert method.exact
    assert method.trained
    assert [option.name for option in method.options()] == ["addon", "tree", "masked"]
