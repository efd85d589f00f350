"""EAGLE: what the network drafts, what it reads, and the output that stays greedy's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.decoding.decoder import Guesser, Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill
from ppdbench.decoding.sampling import GREEDY, Chooser, Target
from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError, NumericalError, UnsupportedModel
from ppdbench.methods import METHODS
from ppdbench.methods.eagle.branching import ChainGrower, DynamicGrower, StaticGrower
from ppdbench.methods.eagle.files import load_network
from ppdbench.methods.eagle.network import (
    DraftNetwork,
    Eagle1,
    Eagle3,
    configuration,
    default_settings,
    feature_layers,
)
from ppdbench.methods.eagle.plan import EaglePlan
from ppdbench.methods.eagle.rows import DraftRows
from ppdbench.methods.eagle.strategy import Eagle, EagleProposer
from ppdbench.methods.eagle.train import EagleObjective
from ppdbench.testing import assert_order_is_nothing, ends_inside_drafts
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode, free
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB, assert_near, staged, tokens

DRAFTED = 40  # the draft vocabulary of networks made here
SMALL = {"depth": 4, "top_k": 4, "nodes": 12}
PROMPTS = [tokens(9, seed) for seed in range(12)]
FITTING = sorted(set(FAMILIES) - {"opt-350m-like"})
SOME = {"plain 1", "one token", "3 new tokens", "up to the capacity"}
STATIC = Tree(((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (0, 1, 2), (2, 0, 0)))


def setup(model: StagedModel) -> Setup:
    return Setup(Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, ""), CAPACITY)


def random_network(model: StagedModel, version: int, seed: int = 0) -> DraftNetwork:
    """Weights large enough to have opinions; a draft vocabulary of every second token or so."""
    config = configuration(default_settings(model.adapter), "tests")
    torch.manual_seed(seed)
    network: DraftNetwork
    if version == 1:
        network = Eagle1(model.adapter, config)
    else:
        network = Eagle3(model.adapter, config, feature_layers(model.n_layers), DRAFTED)
        ids = torch.randperm(VOCAB)[:DRAFTED].sort().values
        network.d2t = ids - torch.arange(DRAFTED)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    return network.eval().requires_grad_(False)


def tensors_of(network: DraftNetwork) -> dict[str, Tensor]:
    """A network under the published names, with the prefix that EAGLE-3 comes with."""
    found = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    if network.d2t is None:
        return found
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[network.all_words()] = True
    renamed = {name.replace("layers.0.", "midlayer."): t for name, t in found.items()}
    return {**renamed, "t2d": known}


def written(folder: Path, model: StagedModel, tensors: dict[str, Tensor], **config: Any) -> str:
    """A published folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    settings = default_settings(model.adapter)
    size = tensors["lm_head.weight"].shape[0] if "lm_head.weight" in tensors else VOCAB
    content = {**settings, "draft_vocab_size": size, "torch_dtype": "float16", **config}
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def published(folder: Path, model: StagedModel, version: int) -> str:
    return written(folder, model, tensors_of(random_network(model, version)))


def random_drafter(model: StagedModel, version: int, folder: Path, **options: Any) -> EagleProposer:
    addon = published(folder, model, version)
    return Eagle(addon=addon, **{**SMALL, **options}).prepare(setup(model))


def static(folder: Path) -> str:
    path = folder / "tree.json"
    STATIC.save(path)
    return str(path)


@pytest.fixture(scope="module", params=[1, 3])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Loaded, Path]:
    """A tiny model and a network of each version that learnt its own outputs."""
    folder = tmp_path_factory.mktemp("trained")
    stock = stock_model("llama")
    texts = [[*prompt, *free(staged("llama"), prompt, 36)] for prompt in PROMPTS]
    plan = EaglePlan(version=request.param, passes=3, loss="ce")
    objective = EagleObjective(stock, plan, 44, 0)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-2)
    for t in range(60):
        objective(torch.tensor(texts), t, 60)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    words = tokenizer(300, 96)
    objective.save(folder, words, None)
    return take_over(ModelSpec(name="tiny"), stock, words), folder


def ready(trained: tuple[Loaded, Path], **options: Any) -> EagleProposer:
    loaded, folder = trained
    return Eagle(addon=str(folder), **{**SMALL, **options}).prepare(Setup(loaded, CAPACITY))


def accepted(decoder: EagleProposer, model: StagedModel, n: int = 6) -> float:
    """Accepted tokens per step; every output is checked to be greedy's."""
    results = [assert_exact(decoder, Case("own", p, Limits(36)), model) for p in PROMPTS[:n]]
    return sum(sum(r.accepted) for r in results) / sum(len(r.accepted) for r in results)


# The output


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("name", FITTING)
def test_the_output_is_greedy_decodings(name: str, version: int, tmp_path: Path) -> None:
    model = staged(name)
    decoder = random_drafter(model, version, tmp_path)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_in_one_fixed_shape_the_output_is_the_same(tree: str, version: int, tmp_path: Path) -> None:
    tree = static(tmp_path) if tree == "static" else tree
    for name in ("llama", "gemma3", "gpt2"):
        model = staged(name)
        decoder = random_drafter(model, version, tmp_path, tree=tree)
        for case in (case for case in cases(model) if name == "llama" or case.name in SOME):
            assert_exact(decoder, case, model, fixed_rows=decoder.rows)


@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_what_is_accepted_ends_at_eos_and_at_limits(
    tree: str, trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    tree = static(tmp_path) if tree == "static" else tree
    decoder, model = ready(trained, tree=tree), trained[0].staged
    for case in cases(model):
        assert_exact(decoder, case, model)
    inside = ends_inside_drafts(decoder, PROMPTS[:2], model)
    assert inside > 10, "no end fell inside a draft"


def test_the_order_of_examples_changes_nothing(trained: tuple[Loaded, Path]) -> None:
    model = trained[0].staged
    found = assert_order_is_nothing(ready(trained), list(cases(model))[:5], model)
    assert any(map(sum, found))


# What is accepted


def test_trained_networks_are_accepted(trained: tuple[Loaded, Path]) -> None:
    model = trained[0].staged
    assert accepted(ready(trained), model) > 2.5
    assert accepted(ready(trained, tree="chain"), model) > 1.5


def test_disturbed_networks_are_accepted_less_and_the_output_stays(
    trained: tuple[Loaded, Path],
) -> None:
    model = trained[0].staged
    decoder = ready(trained)
    whole = accepted(decoder, model)
    norm = decoder.network.layers[0].get_parameter("post_attention_layernorm.weight")
    norm.copy_(torch.randn(norm.shape, generator=torch.Generator().manual_seed(1)))
    assert accepted(decoder, model) < whole - 1


@pytest.mark.parametrize("mistake", ["late features", "late tokens", "no features"])
def test_each_mistake_in_what_rows_read_costs_acceptance(
    mistake: str, trained: tuple[Loaded, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained[0].staged
    decoder = ready(trained)
    whole = accepted(decoder, model, 4)
    read = DraftRows.read

    def wrong(self: DraftRows, ids: Tensor, features: Tensor) -> Tensor:
        if mistake == "late tokens":
            ids = ids.roll(1, 1) if ids.shape[1] > 1 else ids * 0
        elif mistake == "late features":
            features = features.roll(1, 1) if features.shape[1] > 1 else features * 0
        elif self.held:  # after the prompt
            features = features * 0
        return read(self, ids, features)

    monkeypatch.setattr(DraftRows, "read", wrong)
    assert accepted(decoder, model, 4) < whole - 0.3


def test_a_network_that_is_always_right_is_always_accepted(tmp_path: Path) -> None:
    """Layers that add nothing leave the embedding, which the first half of `fc` hands on."""
    stock = stock_model("llama")
    with torch.no_grad():
        for layer in stock.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model = StagedModel(stock)
    tensors = tensors_of(random_network(model, 1))
    tensors["fc.weight"] = torch.eye(32, 64)
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{part}.weight"].zero_()
    addon = written(tmp_path, model, tensors)
    chain = Eagle(addon=addon, tree="chain", depth=4).prepare(setup(model))
    ours = assert_exact(chain, Case("plain", PROMPTS[0], Limits(24)), model)
    assert ours.accepted == ours.proposed == (4, 4, 4, 4, 2)


# The draft


class Watched(EagleProposer):
    """Keeps every draft with the text that it was made for."""

    seen: list[tuple[list[int], Draft]]

    def propose(self, session: Session, room: int) -> Draft:
        draft = super().propose(session, room)
        self.seen.append((list(session.tokens), draft))
        return draft


def watch(decoder: EagleProposer, model: StagedModel, n: int = 16) -> list[tuple[list[int], Draft]]:
    decoder.__class__ = Watched
    assert isinstance(decoder, Watched)
    decoder.seen = []
    decode(decoder, Case("own", PROMPTS[0], Limits(n)), model)
    return decoder.seen


@torch.inference_mode()
def true_features(network: DraftNetwork, model: StagedModel, text: list[int]) -> Tensor:
    """Of all tokens but the last, from one plain pass of the model."""
    taps: dict[int, Tensor] = {}
    cache, steps = model.new_cache(CAPACITY)
    step = steps.prefill(len(text) - 1)
    model.forward(torch.tensor([text[:-1]]), step, cache, tap=taps.__setitem__)
    return network.features(taps)


@torch.inference_mode()
def state_after(
    network: DraftNetwork, features: Tensor, text: list[int], path: tuple[int, ...]
) -> Tensor:
    """The newest state [1, 1, hidden] after a path of guesses, all rows run anew each time."""
    ids = list(text[1:])
    for token in (*path, None):
        network.prepare(CAPACITY)
        _, steps = network.new_cache(CAPACITY)
        states = network(torch.tensor([ids]), features, steps.prefill(len(ids)))
        if token is not None:
            features = torch.cat([features, states[:, -1:]], dim=1)
            ids.append(token)
    return states[:, -1:]


@torch.inference_mode()
def likeliest(network: DraftNetwork, state: Tensor, top: int) -> list[tuple[int, float]]:
    scores, ids = network.logits(state)[0, -1].log_softmax(-1).topk(top)
    return list(zip(network.words(ids).tolist(), scores.tolist(), strict=True))


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    assert draft.parents is not None
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(() if parent < 0 else found[parent]), token))
    return found


def grown(
    network: DraftNetwork, model: StagedModel, text: list[int], depth: int, top: int, nodes: int
) -> set[tuple[int, ...]]:
    """The tree of EAGLE-2 written down as the paper says it, path by path."""
    features = true_features(network, model, text)
    found: dict[tuple[int, ...], float] = {}
    level: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(depth):
        new = {
            (*path, token): score + more
            for path, score in level.items()
            for token, more in likeliest(network, state_after(network, features, text, path), top)
        }
        found |= new
        level = dict(sorted(new.items(), key=lambda entry: -entry[1])[:top])
    return set(sorted(found, key=lambda path: -found[path])[:nodes])


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("name", ["llama3-rope", "gpt2"])
def test_dynamic_trees_hold_the_likeliest_paths_of_all_that_were_tried(
    name: str, version: int, tmp_path: Path
) -> None:
    model = staged(name)
    decoder = random_drafter(model, version, tmp_path, depth=4, top_k=3, nodes=14)
    for text, draft in watch(decoder, model)[:8]:
        room = 16 + len(PROMPTS[0]) - len(text) - 1
        expected = grown(decoder.network, model, text, min(4, room), 3, 14)
        found = paths_of(draft)
        assert len(found) == len(expected)
        assert set(found) == expected


@pytest.mark.parametrize("version", [1, 3])
def test_static_trees_hold_the_guesses_of_their_ranks(version: int, tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, version, tmp_path, tree=static(tmp_path))
    network = decoder.network
    for text, draft in watch(decoder, model)[:6]:
        features = true_features(network, model, text)
        expected: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
        for ranks in STATIC.paths:
            above = expected[ranks[:-1]]
            guesses = likeliest(network, state_after(network, features, text, above), 3)
            expected[ranks] = (*above, guesses[ranks[-1]][0])
        assert set(paths_of(draft)) == set(expected.values()) - {()}


def test_accepted_rows_are_those_of_the_targets_true_features(
    trained: tuple[Loaded, Path],
) -> None:
    """After trees, branches and rejections the cache is what one pass over the text gives."""
    model, decoder = trained[0].staged, ready(trained)
    text, _ = watch(decoder, model, 30)[-1]
    rows = decoder._rows
    assert rows.held == len(text) - 1
    network = decoder.network
    fresh = DraftRows(network, CAPACITY, 0)
    with torch.inference_mode():
        fresh.read(torch.tensor([text[1:]]), true_features(network, model, text))
    for ours, truth in zip(rows.cache._keys[0], fresh.cache._keys[0], strict=True):
        assert_near(ours[:, : rows.held], truth[:, : rows.held])
    for ours, truth in zip(rows.cache._values[0], fresh.cache._values[0], strict=True):
        assert_near(ours[:, : rows.held], truth[:, : rows.held])


@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_a_draft_costs_one_pass_per_depth_and_one_wait(
    tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = staged("llama")
    tree = static(tmp_path) if tree == "static" else tree
    decoder = random_drafter(model, 3, tmp_path, tree=tree)
    passes: list[int] = []
    waits: list[int] = []
    rooms: list[int] = []
    forward, listed, propose = Eagle3.forward, Tensor.tolist, EagleProposer.propose

    def run(self: Eagle3, ids: Tensor, *rest: Any) -> Tensor:
        passes.append(ids.shape[1])
        return forward(self, ids, *rest)

    def read(tensor: Tensor) -> Any:
        waits.append(tensor.numel())
        return listed(tensor)

    def drafted(self: EagleProposer, session: Session, room: int) -> Draft:
        rooms.append(room)
        with monkeypatch.context() as inside:
            inside.setattr(Tensor, "tolist", read)
            return propose(self, session, room)

    monkeypatch.setattr(Eagle3, "forward", run)
    monkeypatch.setattr(EagleProposer, "propose", drafted)
    decode(decoder, Case("own", PROMPTS[0], Limits(30)), model)
    assert len(waits) == len(rooms) > 5
    # One of them reads what was accepted; before the first draft it is the prompt.
    assert len(passes) == sum(min(decoder.grower.depth, room) for room in rooms)


def test_no_draft_is_deeper_than_the_room(tmp_path: Path) -> None:
    model = staged("llama")
    for tree in ("dynamic", "chain", static(tmp_path)):
        decoder = random_drafter(model, 3, tmp_path, tree=tree)
        for room in (1, 2, 3):
            assert max(opened(decoder, model)[1](room).depths) == room


def opened(
    decoder: EagleProposer, model: StagedModel, chooser: Chooser = GREEDY
) -> tuple[Session, Any]:
    """A sequence right before its first draft, and what makes one."""
    session = Session(model, CAPACITY, spare=decoder.rows)
    session.reset(PROMPTS[0])
    taps: dict[int, Tensor] = {}
    with torch.inference_mode():
        session.tokens.append(int(session.prefill(tap=taps.__setitem__).argmax()))
        decoder.start(session, Prefill(chooser, taps))
    return session, torch.inference_mode()(lambda room: decoder.propose(session, room))


def test_equally_likely_nodes_are_still_a_tree(tmp_path: Path) -> None:
    """Where the network knows nothing, all sums of a level are the same."""
    model = staged("llama")
    tensors = tensors_of(random_network(model, 3))
    tensors["lm_head.weight"].zero_()
    decoder = Eagle(addon=written(tmp_path, model, tensors), **SMALL).prepare(setup(model))
    _, propose = opened(decoder, model)
    draft = propose(20)
    draft.check(VOCAB, model.n_layers)
    assert len(draft) == 12


def test_certain_guesses_keep_the_nodes_that_they_hang_on(tmp_path: Path) -> None:
    """A probability of one makes a child as likely as its parent."""
    model = staged("llama")
    tensors = tensors_of(random_network(model, 3))
    tensors["lm_head.weight"] *= 1000
    decoder = Eagle(addon=written(tmp_path, model, tensors), **SMALL).prepare(setup(model))
    _, propose = opened(decoder, model)
    draft = propose(20)
    assert draft.parents is not None
    assert max(draft.depths) == 4
    assert_exact(decoder, Case("own", PROMPTS[1], Limits(20)), model)


def test_only_the_draft_vocabulary_is_drafted(tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, 3, tmp_path)
    known = set(decoder.network.all_words().tolist())
    assert len(known) == DRAFTED
    drafted = {token for _, draft in watch(decoder, model, 40) for token in draft.tokens}
    assert drafted <= known
    assert max(drafted) >= DRAFTED, "the map was not used"


# The network


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def turned(x: Tensor) -> Tensor:
    """Rotary positions 0, 1, ... on [heads, n, 8]."""
    angles = torch.arange(x.shape[1])[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :4], x[..., 4:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def attended(x: Tensor, t: dict[str, Tensor], prefix: str) -> Tensor:
    """Four heads of 8 over two heads of keys and values, causally; x [n, any]."""
    q, k, v = (
        (x @ t[f"{prefix}self_attn.{name}_proj.weight"].T).view(len(x), -1, 8).transpose(0, 1)
        for name in "qkv"
    )
    q, k, v = turned(q), turned(k).repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(
        torch.ones(len(x), len(x)).triu(1).bool(), float("-inf")
    )
    out = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1)
    return out @ t[f"{prefix}self_attn.o_proj.weight"].T


def with_mlp(x: Tensor, t: dict[str, Tensor], prefix: str) -> Tensor:
    normed = rms(x, t[f"{prefix}post_attention_layernorm.weight"])
    gate, up = (normed @ t[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (torch.nn.functional.silu(gate) * up) @ t[f"{prefix}mlp.down_proj.weight"].T


@pytest.mark.parametrize("version", [1, 3])
@torch.inference_mode()
def test_the_network_computes_what_the_papers_say(version: int, tmp_path: Path) -> None:
    """Written out from the published tensors and the states of a stock model."""
    model, stock = staged("llama"), stock_model("llama")
    tensors = tensors_of(random_network(model, version))
    draw = torch.Generator().manual_seed(2)
    tensors |= {
        name: 1 + 0.3 * torch.randn(t.shape, generator=draw)
        for name, t in tensors.items()
        if "norm" in name
    }
    decoder = Eagle(addon=written(tmp_path, model, tensors)).prepare(setup(model))
    text = PROMPTS[0]
    hidden = stock(torch.tensor([text]), output_hidden_states=True).hidden_states
    words = stock.model.embed_tokens.weight[text[1:]]
    if version == 1:
        # The last of these states has the final norm behind it already.
        x = torch.cat([words, hidden[-1][0, :-1]], dim=-1) @ tensors["fc.weight"].T
        x = with_mlp(x + attended(x, tensors, "layers.0."), tensors, "layers.0.")
        logits = stock.lm_head(x)
    else:
        assert feature_layers(4) == (1, 2, 4)
        taken: dict[int, Tensor] = {}
        hook = stock.model.layers[3].register_forward_hook(
            lambda module, given, out: taken.update({4: out})
        )
        stock(torch.tensor([text]))
        hook.remove()
        three = [hidden[1][0, :-1], hidden[2][0, :-1], taken[4][0, :-1]]
        x = torch.cat(three, dim=-1) @ tensors["fc.weight"].T
        entering = torch.cat(
            [
                rms(words, tensors["midlayer.input_layernorm.weight"]),
                rms(x, tensors["midlayer.hidden_norm.weight"]),
            ],
            dim=-1,
        )
        x = with_mlp(x + attended(entering, tensors, "midlayer."), tensors, "midlayer.")
        logits = rms(x, tensors["norm.weight"]) @ tensors["lm_head.weight"].T
    network = decoder.network
    states = DraftRows(network, CAPACITY, 0).read(
        torch.tensor([text[1:]]), true_features(network, model, text)
    )
    assert_near(states[0], x)
    assert_near(network.logits(states)[0], logits)


# Guesses


@pytest.mark.parametrize("version", [1, 3])
def test_guesses_are_the_chain_that_it_would_draft_there(version: int, tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, version, tmp_path, tree="chain")
    assert isinstance(decoder, Guesser)
    seen = watch(decoder, model, 24)
    text = seen[-1][0]
    places = [len(before) - 2 for before, _ in seen]
    session = Session(model, CAPACITY, spare=decoder.rows)
    with torch.inference_mode():
        found = decoder.guesses(session, text, places)
    assert found.shape == (len(places), 4, VOCAB)
    for place, (_, draft) in zip(found.argmax(-1).tolist(), seen, strict=True):
        assert tuple(place[: len(draft)]) == draft.tokens


def test_guesses_at_the_first_and_the_last_place_need_no_more_text(tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, 3, tmp_path)
    session = Session(model, CAPACITY)
    with torch.inference_mode():
        both = decoder.guesses(session, PROMPTS[0], [0, 8])
        alone = decoder.guesses(session, PROMPTS[0][:1], [0])
    torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=1e-5)


# Sampling


def drawer(target: Target, seed: int = 3) -> Chooser:
    return Chooser(target, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("version", [1, 3])
def test_drawn_chains_say_what_they_were_drawn_from(version: int, tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, version, tmp_path, tree="chain")
    assert not decoder.trees
    _, propose = opened(decoder, model, drawer(Target(kind="top-p", top_p=1.0)))
    draft = propose(20)
    draft.check(VOCAB, model.n_layers)
    assert draft.probabilities is not None
    assert draft.probabilities.sum(-1).tolist() == pytest.approx([1] * 4)
    assert all(float(draft.probabilities[i, t]) > 0 for i, t in enumerate(draft.tokens))
    elsewhere = torch.ones(VOCAB, dtype=torch.bool)
    elsewhere[decoder.network.all_words()] = False
    assert float(draft.probabilities[:, elsewhere].sum()) == 0


@pytest.mark.parametrize("options", [{"tree": "chain"}, {"top_k": 1}])
def test_a_draw_from_one_token_is_the_greedy_output(
    options: dict[str, Any], trained: tuple[Loaded, Path]
) -> None:
    decoder, model = ready(trained, **options), trained[0].staged
    session = Session(model, CAPACITY, spare=decoder.rows)
    one = drawer(Target(kind="top-k", top_k=1))
    ours = decoder.decode(session, Request(PROMPTS[0], Limits(24), CLOCK, one))
    assert ours.output_ids == free(model, PROMPTS[0], 24)
    assert sum(ours.accepted) > 0


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_sampled_outputs_follow_the_model_through_a_draft_vocabulary(
    tree: str, tmp_path: Path
) -> None:
    """The second token of 300 outputs, against exact probabilities."""
    model = StagedModel(stock_model("llama", vocab_size=6, num_hidden_layers=3))
    network = Eagle3(
        model.adapter, configuration(default_settings(model.adapter), "tests"), (1, 2, 3), 4
    )
    tensors = {name: t for name, t in network.state_dict().items() if name != "d2t"}
    tensors["d2t"] = torch.tensor([0, 1, 1, 2])
    addon = written(tmp_path, model, tensors)
    decoder = Eagle(addon=addon, tree=tree, depth=2, top_k=2).prepare(setup(model))
    target, n = Target(kind="top-p", top_p=1.0, temperature=2.0), 300
    session, chooser, prompt = Session(model, 16, spare=decoder.rows), drawer(target), [3, 4, 5]

    def after(ids: list[int]) -> Tensor:
        session.reset(ids)
        with torch.inference_mode():
            return target.distribution(session.prefill()[:, -1])[0]

    truth = sum((p * after([*prompt, t]) for t, p in enumerate(after(prompt))), torch.zeros(6))
    counts, kept = torch.zeros(6), 0
    for _ in range(n):
        out = decoder.decode(session, Request(list(prompt), Limits(4), CLOCK, chooser))
        counts[out.output_ids[1]] += 1
        kept += out.accepted[0] > 0
    assert n / 10 < kept < n * 9 / 10
    # Chi-squared over 5 degrees of freedom: 20.5 is passed once in a thousand.
    assert float(((counts - truth * n) ** 2 / (truth * n)).sum()) < 20.5


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("version", [1, 3])
def test_every_family_of_a_drawn_tree_says_what_it_was_drawn_from(
    version: int, kind: str, tmp_path: Path
) -> None:
    model, target = staged("llama"), Target(kind="top-p", top_p=1.0, temperature=1.5)
    shape = {"tree": static(tmp_path)} if kind == "static" else {"depth": 3, "top_k": 3}
    decoder = random_drafter(model, version, tmp_path, **shape)
    assert decoder.trees
    session, propose = opened(decoder, model, drawer(target))
    draft = propose(20)
    draft.check(VOCAB, model.n_layers)
    assert draft.probabilities is not None
    assert len(draft.families) > 2
    features = true_features(decoder.network, model, session.tokens)
    paths = [(), *paths_of(draft)]
    for parent, row in zip(draft.families, draft.probabilities, strict=True):
        state = state_after(decoder.network, features, session.tokens, paths[1 + parent])
        source = target.distribution(decoder.network.logits(state)[0, -1:])
        expected = decoder.network.spread(source, 0.0)[0]
        torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-5)


def test_a_tree_of_chosen_tokens_says_nothing_of_draws(tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, 3, tmp_path, drawn=False)
    session = Session(model, CAPACITY, spare=decoder.rows)
    chooser = drawer(Target(kind="top-p"))
    decoder.decode(session, Request(list(PROMPTS[0]), Limits(6), CLOCK, chooser))
    assert decoder.propose(session, 4).probabilities is None


# Files


@pytest.mark.parametrize("version", [1, 3])
def test_every_way_to_publish_the_same_network_gives_the_same_drafts(
    version: int, tmp_path: Path
) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, version))
    variants = {"plain": tensors}
    variants["other prefix"] = {n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}
    embedding = model.adapter.embedding.get_parameter("weight").clone()
    variants["with the embedding"] = {**tensors, "embed_tokens.weight": embedding}
    variants["with frequencies"] = {
        **tensors,
        "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    zero = {"fc.bias": 32, "layers.0.self_attn.q_proj.bias": 32, "layers.0.mlp.up_proj.bias": 48}
    plain = variants["other prefix"]
    variants["with biases"] = {**plain, **{n: torch.zeros(size) for n, size in zero.items()}}
    if version == 3:
        variants["without t2d"] = {n: t for n, t in tensors.items() if n != "t2d"}
    found = {}
    for name, variant in variants.items():
        addon = written(tmp_path / name, model, variant)
        found[name] = watch(Eagle(addon=addon, **SMALL).prepare(setup(model)), model)
    torch.save(tensors, tmp_path / "plain" / "pytorch_model.bin")
    (tmp_path / "plain" / "model.safetensors").unlink()
    addon = str(tmp_path / "plain")
    found["pickled"] = watch(Eagle(addon=addon, **SMALL).prepare(setup(model)), model)
    assert all(drafts == found["plain"] for drafts in found.values())


@pytest.mark.parametrize("changed", ["fc.bias", "embed_tokens.weight"])
def test_what_some_files_hold_besides_is_used(changed: str, tmp_path: Path) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, 1))
    shape = (32,) if changed == "fc.bias" else (VOCAB, 32)
    more = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    plain = random_drafter(model, 1, tmp_path / "plain")
    addon = written(tmp_path / "more", model, {**tensors, changed: more})
    other = Eagle(addon=addon, **SMALL).prepare(setup(model))
    assert watch(plain, model) != watch(other, model)


def test_a_head_over_the_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, 3))
    del tensors["d2t"], tensors["t2d"]
    tensors["lm_head.weight"] = torch.randn(VOCAB, 32)
    decoder = Eagle(addon=written(tmp_path, model, tensors), **SMALL).prepare(setup(model))
    assert decoder.network.n_words == VOCAB
    assert_exact(decoder, Case("own", PROMPTS[0], Limits(20)), model)


@pytest.mark.parametrize(
    ("n_layers", "expected"),
    [(32, (2, 16, 29)), (8, (2, 4, 5)), (7, (2, 3, 4)), (6, (2, 4, 6)), (3, (1, 2, 3))],
)
def test_features_come_from_the_published_layers(n_layers: int, expected: tuple[int, ...]) -> None:
    assert feature_layers(n_layers) == expected
    assert all(1 <= layer <= 2 for layer in feature_layers(2))
    assert feature_layers(1) == (1, 1, 1)


def test_files_may_say_which_layers_they_read_and_an_option_overrules_them(
    tmp_path: Path,
) -> None:
    model = staged("llama")
    addon = published(tmp_path / "plain", model, 3)
    assert Eagle(addon=addon).prepare(setup(model)).taps == feature_layers(4)
    said = written(
        tmp_path / "said",
        model,
        tensors_of(random_network(model, 3)),
        eagle_aux_hidden_state_layer_ids=[1, 3, 4],
    )
    assert Eagle(addon=said).prepare(setup(model)).taps == (1, 3, 4)
    overruled = Eagle(addon=said, reads="1+2+3", **SMALL).prepare(setup(model))
    assert overruled.taps == (1, 2, 3)
    assert_exact(overruled, Case("own", PROMPTS[0], Limits(20)), model)


def test_the_rotary_positions_are_those_of_the_file(tmp_path: Path) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, 1))
    drafts = []
    for theta in (10000.0, 10.0):
        folder = tmp_path / str(theta)
        addon = written(folder, model, tensors)
        config = json.loads((folder / "config.json").read_text())
        del config["rope_parameters"]
        (folder / "config.json").write_text(json.dumps({**config, "rope_theta": theta}))
        drafts.append(watch(Eagle(addon=addon, **SMALL).prepare(setup(model)), model))
    assert drafts[0] == watch(random_drafter(model, 1, tmp_path / "plain"), model)
    assert drafts[0] != drafts[1]


def test_what_was_read_is_told_by_its_fingerprint(tmp_path: Path) -> None:
    model = staged("llama")
    one, two = (random_drafter(model, v, tmp_path / str(v)).loaded for v in (1, 3))
    assert one["addon"] != two["addon"]
    tree = random_drafter(model, 1, tmp_path / "tree", tree=static(tmp_path)).loaded
    assert tree["addon"] == one["addon"]
    assert "tree" in tree


# What is refused


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no depth": ({"depth": 0}, "eagle: depth=0; use 1 or more"),
    "no guesses": ({"top_k": 0}, "eagle: top_k=0; use 1 or more"),
    "no nodes": ({"nodes": -1}, "eagle: nodes=-1; use 1 or more"),
    "no layers": ({"reads": "2,16"}, "eagle: reads='2,16'; use three layers, such as"),
    "two layers": ({"reads": "2+3"}, "eagle: reads='2+3'; use three layers, such as"),
    "no addon": ({}, "eagle: no add-on for tiny; train one with `ppdbench train eagle"),
    "no folder": ({"addon": "nowhere"}, "nowhere holds no draft network"),
    "an empty folder": ({"addon": "."}, "holds no draft network"),
}


@pytest.mark.parametrize("what", sorted(BAD_OPTIONS))
def test_impossible_options_are_errors_that_say_what_to_do(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, message = BAD_OPTIONS[what]
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        Eagle(**options).prepare(setup(staged("llama")))


BAD_READS: dict[str, tuple[int, str, str]] = {
    "of version 1": (1, "1+2+3", r"reads=1\+2\+3, but .* holds EAGLE-1"),
    "beyond the last": (3, "1+2+5", "features after layer 5, but this model has 4 layers"),
}


@pytest.mark.parametrize("what", sorted(BAD_READS))
def test_layers_that_cannot_be_read_are_refused(what: str, tmp_path: Path) -> None:
    version, reads, message = BAD_READS[what]
    with pytest.raises(ConfigError, match=message):
        random_drafter(staged("llama"), version, tmp_path, reads=reads)


def some(version: int, **changed: Any) -> dict[str, Tensor]:
    """Tensors of a network, some replaced, some (None) left out."""
    tensors: dict[str, Any] = tensors_of(random_network(staged("llama"), version))
    tensors |= {name.replace("__", "."): value for name, value in changed.items()}
    return {name: value for name, value in tensors.items() if value is not None}


BAD_TENSORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "a missing projection": (
        some(1, layers__0__self_attn__k_proj__weight=None),
        r"lacks the tensor layers\.0\.self_attn\.k_proj\.weight",
    ),
    "a missing norm": (
        some(3, midlayer__hidden_norm__weight=None),
        r"lacks the tensor midlayer\.hidden_norm\.weight",
    ),
    "a missing map": (some(3, d2t=None), "lacks the tensor d2t"),
    "a second layer": (
        some(1, layers__1__mlp__up_proj__weight=torch.zeros(48, 32)),
        r"unexpected tensors: layers\.1\.mlp\.up_proj\.weight",
    ),
    "an unknown bias": (some(3, norm__bias=torch.zeros(32)), r"unexpected tensors: norm\.bias"),
    "another width": (
        some(1, fc__weight=torch.zeros(32, 48)),
        r"fc\.weight has shape \[32, 48\], not \[32, 64\]",
    ),
    "another vocabulary": (
        some(1, embed_tokens__weight=torch.zeros(90, 32)),
        r"embed_tokens\.weight has shape \[90, 32\], not \[96, 32\]",
    ),
    "a map out of the vocabulary": (
        some(3, d2t=torch.full((DRAFTED,), 90)),
        r"d2t leads to ids outside 0\.\.95",
    ),
    "a map below the vocabulary": (
        some(3, d2t=torch.full((DRAFTED,), -5)),
        r"d2t leads to ids outside 0\.\.95",
    ),
    "a map that meets itself": (
        some(3, d2t=-torch.arange(DRAFTED)),
        "d2t leads to the same id twice",
    ),
    "a map of fractions": (some(3, d2t=torch.zeros(DRAFTED)), r"d2t holds torch\.float32"),
    "maps that differ": (
        some(3, t2d=torch.zeros(VOCAB, dtype=torch.bool)),
        "t2d and d2t do not name the same ids",
    ),
}


@pytest.mark.parametrize("what", sorted(BAD_TENSORS))
def test_wrong_tensors_are_named(what: str, tmp_path: Path) -> None:
    tensors, message = BAD_TENSORS[what]
    model = staged("llama")
    with pytest.raises(ConfigError, match=message):
        Eagle(addon=written(tmp_path, model, tensors)).prepare(setup(model))


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({"hidden_size": 64}, "network is 64 wide, this model 32"),
    "no number": ({"num_attention_heads": "4"}, "describes no layer that can be built"),
    "an unknown activation": ({"hidden_act": "sinus"}, "describes no layer that can be built"),
    "unknown positions": (
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        "describes no layer that can be built",
    ),
    "nothing about heads": ({"num_attention_heads": None}, "does not say num_attention_heads"),
    "no size": ({"draft_vocab_size": "many"}, r"draft_vocab_size='many'; use 1\.\.96"),
    "too large a size": ({"draft_vocab_size": 97}, r"draft_vocab_size=97; use 1\.\.96"),
    "two layers": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2]},
        r"EAGLE-3 reads are three numbers, not \[1, 2\]",
    ),
    "another residual": ({"norm_before_residual": True}, "norm_before_residual is not supported"),
}


@pytest.mark.parametrize("what", sorted(BAD_CONFIGS))
def test_wrong_configurations_are_one_line(what: str, tmp_path: Path) -> None:
    config, message = BAD_CONFIGS[what]
    model = staged("llama")
    addon = written(tmp_path, model, tensors_of(random_network(model, 3)), **config)
    with pytest.raises(ConfigError, match=message) as caught:
        Eagle(addon=addon).prepare(setup(model))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", '{"a": '])
def test_torn_configurations_are_named(content: str, tmp_path: Path) -> None:
    model = staged("llama")
    addon = published(tmp_path, model, 1)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        Eagle(addon=addon).prepare(setup(model))


class Harmful:
    def __reduce__(self) -> Any:
        return (os.system, ("true",))


def test_a_published_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    model = staged("llama")
    addon = published(tmp_path, model, 1)
    (tmp_path / "model.safetensors").unlink()
    torch.save({**some(1), "more": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin is refused"):
        Eagle(addon=addon).prepare(setup(model))
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ConfigError, match="or a published model"):
        Eagle(addon=addon).prepare(setup(model))


def test_a_network_for_another_model_is_refused(trained: tuple[Loaded, Path]) -> None:
    words = tokenizer(300, 96)
    other = take_over(ModelSpec(name="other"), stock_model("llama", seed=1), words)
    with pytest.raises(ConfigError, match="were trained for another model"):
        Eagle(addon=str(trained[1])).prepare(Setup(other, CAPACITY))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eagle": 2}, "eagle is 2; use 1 or 3"),
        ({"eagle": "3"}, "eagle must be a whole number"),
        ({"network": 3}, "network must be a mapping"),
        ({"network": {}}, "does not say hidden_size"),
        ({"eagle": 3, "draft_vocab": 97}, r"draft_vocab is 97 .*; use 0\.\.96"),
        ({"eagle": 3, "draft_vocab": 0, "rank": -1}, "rank -1; use .* 0 or more"),
        ({"eagle": 3, "reads": [1, 2]}, r"three numbers, not \[1, 2\]"),
    ],
)
def test_an_addon_whose_options_do_not_fit_is_refused(
    change: dict[str, Any], message: str, trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    loaded, folder = trained
    header = json.loads((folder / "addon.json").read_text())
    header["options"] |= {"reads": [1, 2, 4], "rank": 0, **change}
    (tmp_path / "addon.json").write_text(json.dumps(header))
    (tmp_path / "addon.safetensors").write_bytes((folder / "addon.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=message):
        load_network(str(tmp_path), loaded)


def test_an_addon_says_itself_what_it_reads(trained: tuple[Loaded, Path]) -> None:
    with pytest.raises(ConfigError, match="says itself what it reads"):
        ready(trained, reads="1+2+3")


TREES: dict[str, tuple[list[list[int]], str]] = {
    "too large": ([[r] for r in range(CAPACITY + 1)], f"{CAPACITY + 1} nodes.*{CAPACITY}"),
    "too many guesses": ([[DRAFTED]], f"{DRAFTED + 1} guesses after a token.*has {DRAFTED}"),
    "an orphan": ([[0, 1]], "no parent"),
    "twins": ([[0], [0]], "twice"),
}


@pytest.mark.parametrize("what", sorted(TREES))
def test_trees_that_cannot_be_filled_are_refused(what: str, tmp_path: Path) -> None:
    paths, message = TREES[what]
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps({"format": "ppdbench-tree", "version": 1, "paths": paths}))
    with pytest.raises(ConfigError, match=message):
        random_drafter(staged("llama"), 3, tmp_path, tree=str(tree))


def test_a_head_that_reads_something_narrower_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = staged("opt-350m-like")
    addon = published(tmp_path, staged("llama"), 1)
    with pytest.raises(UnsupportedModel, match="head reads 16 numbers of hidden states of 32"):
        Eagle(addon=addon).prepare(setup(model))


@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_nan_is_an_error_not_a_draft(tree: str, tmp_path: Path) -> None:
    model = staged("llama")
    tree = static(tmp_path) if tree == "static" else tree
    decoder = random_drafter(model, 3, tmp_path, tree=tree)
    decoder.network.norm.get_parameter("weight").fill_(float("nan"))
    with pytest.raises(NumericalError, match="eagle: NaN or infinite logits of the draft network"):
        opened(decoder, model)[1](9)


def test_trees_grow_as_asked(tmp_path: Path) -> None:
    model = staged("llama")
    kinds = {"dynamic": DynamicGrower, "chain": ChainGrower, static(tmp_path): StaticGrower}
    for tree, kind in kinds.items():
        decoder = random_drafter(model, 3, tmp_path, tree=tree)
        assert type(decoder.grower) is kind
        assert decoder.trees is (kind is not ChainGrower)
    path = tmp_path / "line.json"
    Tree(((0,), (0, 0), (0, 0, 0))).save(path)
    for options in ({"top_k": 1}, {"tree": str(path)}):
        line = random_drafter(model, 3, tmp_path, **options)
        assert type(line.grower) is ChainGrower
    assert random_drafter(model, 3, tmp_path, depth=1, top_k=3, nodes=60).rows == 4


def test_it_is_listed_as_exact_and_trained() -> None:
    method = METHODS.get("eagle")
    assert method.exact
    assert method.trained
    built = method.build({"addon": "x", "tree": "chain", "depth": "3", "reads": "2+16+29"})
    assert built == Eagle(addon="x", tree="chain", depth=3, reads="2+16+29")
