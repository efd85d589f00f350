"""Chains and trees of EAGLE: which guesses they hold, and what was drawn for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Target
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods.eagle.branching import ChainGrower, DynamicGrower, StaticGrower
from ppdbench.methods.eagle.network import (
    DraftNetwork,
)
from ppdbench.methods.eagle.strategy import Eagle
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact
from tests.helpers import VOCAB, staged
from tests.methods.eagle.made import (
    DRAFTED,
    PROMPTS,
    SMALL,
    STATIC,
    drawer,
    opened,
    random_drafter,
    random_network,
    setup,
    static,
    tensors_of,
    true_features,
    watch,
    written,
)


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


def test_no_draft_is_deeper_than_the_room(tmp_path: Path) -> None:
    model = staged("llama")
    for tree in ("dynamic", "chain", static(tmp_path)):
        decoder = random_drafter(model, 3, tmp_path, tree=tree)
        for room in (1, 2, 3):
            assert max(opened(decoder, model)[1](room).depths) == room


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
