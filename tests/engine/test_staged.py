"""The laws of the engine, for every family: cuts, caches, trees and fixed shapes."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn

from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import FixedShape, StepMaker
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.families import FAMILIES, WINDOW, stock_model
from tests.helpers import (
    CAPACITY,
    WINDOWED,
    assert_near,
    go,
    plain,
    prefilled,
    staged,
    tokens,
)

every_family = pytest.mark.parametrize("name", FAMILIES)

# node -> parent, -1 for the sequence
TREES = {
    "chain": [-1, 0, 1, 2],
    "star": [-1, -1, -1, -1],
    "binary": [-1, -1, 0, 0, 1, 1],
    "medusa-like": [-1, -1, -1, 0, 0, 1, 3, 3, 6],
    "depth-first": [-1, 0, 1, 0, -1, 4, 4],
}


def random_tree(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(-1, node) for node in range(draw.randrange(1, 12))]


def all_trees() -> list[list[int]]:
    return [*TREES.values(), *(random_tree(seed) for seed in range(5))]


def path_to(node: int, parents: list[int]) -> list[int]:
    """The nodes from the root to `node`, both included."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


# Cutting between layers


@every_family
@torch.inference_mode()
def test_two_halves_equal_the_whole(name: str) -> None:
    model = staged(name)
    prompt, more = tokens(13), tokens(3, seed=1)
    whole, steps = prefilled(model, prompt)
    expected = go(model, more, steps.chain(13, 3), whole)
    for cut in range(model.n_layers + 1):
        cache, steps = model.new_cache(CAPACITY)
        for ids, start in ((prompt, 0), (more, 13)):
            step = steps.chain(start, len(ids))
            hidden = model.embed(torch.tensor([ids]), step)
            hidden = model.run(hidden, 0, cut, step, cache)
            hidden = model.run(hidden, cut, model.n_layers, step, cache)
        assert torch.equal(hidden, expected)
        for layer in range(model.n_layers):
            for ours, theirs in zip(cache.rows(layer), whole.rows(layer), strict=True):
                assert torch.equal(ours, theirs)


@every_family
@torch.inference_mode()
def test_halves_in_two_models_with_caches_of_their_own_equal_one(name: str) -> None:
    lower, upper = staged(name), StagedModel(stock_model(name))
    n_layers, prompt = lower.n_layers, tokens(13)
    whole, steps = prefilled(lower, prompt)
    for cut in range(1, n_layers):
        below, lower_steps = lower.new_cache(CAPACITY, layers=range(cut))
        above, upper_steps = upper.new_cache(CAPACITY, layers=range(cut, n_layers))
        start = 0
        for ids in (prompt, tokens(1, seed=1), tokens(4, seed=2)):
            step = lower_steps.chain(start, len(ids))
            handed_over = lower.run(lower.embed(torch.tensor([ids]), step), 0, cut, step, below)
            step = upper_steps.chain(start, len(ids))
            hidden = upper.run(handed_over.clone(), cut, n_layers, step, above)
            expected = go(lower, ids, steps.chain(start, len(ids)), whole)
            assert torch.equal(hidden, expected)
            start += len(ids)
        assert list(below.lengths) == list(range(cut))
        assert list(above.lengths) == list(range(cut, n_layers))


@every_family
@torch.inference_mode()
def test_tap_is_handed_every_layer_once_and_in_order(name: str) -> None:
    model = staged(name)
    cache, steps = model.new_cache(CAPACITY)
    step = steps.chain(0, 9)
    start = model.embed(torch.tensor([tokens(9)]), step)
    seen: list[tuple[int, Tensor]] = []
    model.run(start, 0, 2, step, cache, tap=lambda n, hidden: seen.append((n, hidden)))
    model.run(
        seen[-1][1], 2, model.n_layers, step, cache, tap=lambda n, hidden: seen.append((n, hidden))
    )
    assert [n for n, _ in seen] == list(range(1, model.n_layers + 1))
    for n_layers, hidden in seen:
        assert torch.equal(hidden, model.run(start, 0, n_layers, step, cache))


@every_family
@torch.inference_mode()
def test_logits_after_an_exit_layer_equal_a_model_that_is_cut_there(name: str) -> None:
    model, ids = staged(name), torch.tensor([tokens(11)])
    for exit_after in range(1, model.n_layers + 1):
        stock = stock_model(name)
        body = stock.get_submodule(model.adapter.family.body)
        layers_name = model.adapter.family.layers
        setattr(body, layers_name, nn.ModuleList(getattr(body, layers_name)[:exit_after]))
        stock.config.num_hidden_layers = exit_after
        cache, steps = model.new_cache(CAPACITY)
        step = steps.chain(0, 11)
        hidden = model.run(model.embed(ids, step), 0, exit_after, step, cache)
        assert_near(model.logits(hidden), stock(ids, use_cache=False).logits)


# The cache


@every_family
@torch.inference_mode()
def test_cached_equals_uncached_however_the_sequence_is_cut(name: str) -> None:
    model, ids = staged(name), tokens(24)
    expected = plain(model, ids)
    for pieces in ([1] * 24, [11, 1, 1, 5, 6], [2, 9, 1, 12], [8, 8, 8]):
        cache, steps = model.new_cache(CAPACITY)
        out, start = [], 0
        for n in pieces:
            out.append(go(model, ids[start : start + n], steps.chain(start, n), cache))
            start += n
        assert_near(torch.cat(out, 1), expected)


@every_family
@torch.inference_mode()
def test_what_was_appended_and_rolled_back_changes_nothing_afterwards(name: str) -> None:
    model, prompt, follow = staged(name), tokens(12), tokens(4, seed=1)

    def decode(detour: bool) -> Tensor:
        session = Session(model, CAPACITY)
        session.reset(prompt)
        out = [session.prefill()]
        for token in follow:
            if detour:
                session.forward(torch.tensor([tokens(5, seed=token)]))
                session.rollback(len(session.tokens))
                parents = TREES["binary"]
                step = session.steps.tree(session.cached, parents)
                go(model, tokens(len(parents), seed=token + 1), step, session.cache)
                session.rollback(len(session.tokens))
            out.append(session.advance(torch.tensor([[token]])))
            session.tokens.append(token)
        return torch.cat(out, 1)

    assert torch.equal(decode(detour=True), decode(detour=False))


@every_family
@torch.inference_mode()
def test_a_session_that_is_reset_decodes_like_a_new_one(name: str) -> None:
    model, prompt = staged(name), tokens(10)
    used, fresh = Session(model, CAPACITY), Session(model, CAPACITY)
    used.reset(tokens(30, seed=5))
    used.prefill()
    results = []
    for session in (used, fresh):
        session.reset(prompt)
        session.prefill()
        results.append(session.advance(torch.tensor([[7]])))
    assert torch.equal(*results)


# Trees


@every_family
@torch.inference_mode()
def test_keeping_a_tree_path_equals_decoding_that_path_plainly(name: str) -> None:
    model, next_token = staged(name), [50]
    for seed, parents in enumerate(all_trees()):
        nodes = tokens(len(parents), seed)
        for base in (1, 11):
            prompt = tokens(base, seed + 100)
            path = path_to(random.Random(seed).randrange(len(parents)), parents)
            cache, steps = prefilled(model, prompt)
            go(model, nodes, steps.tree(base, parents), cache)
            cache.keep(base, path)
            end = base + len(path)
            ours = go(model, next_token, steps.chain(end, 1), cache)
            truth = plain(model, [*prompt, *(nodes[i] for i in path), *next_token])
            assert_near(model.logits(ours), model.logits(truth[:, -1:]))


@every_family
@torch.inference_mode()
def test_each_tree_node_equals_decoding_its_root_path(name: str) -> None:
    model = staged(name)
    for seed, parents in enumerate(all_trees()):
        nodes = tokens(len(parents), seed)
        for base in (1, 11):
            prompt = tokens(base, seed + 100)
            cache, steps = prefilled(model, prompt)
            ours = go(model, nodes, steps.tree(base, parents), cache)
            for node in range(len(parents)):
                path = path_to(node, parents)
                truth = plain(model, [*prompt, *(nodes[i] for i in path)])
                assert_near(ours[:, node], truth[:, -1])


@every_family
@torch.inference_mode()
def test_tree_nodes_react_to_their_ancestors_alone(name: str) -> None:
    model, parents = staged(name), TREES["medusa-like"]
    base, nodes = 11, tokens(9, seed=3)
    cache, steps = prefilled(model, tokens(base))
    before = go(model, nodes, steps.tree(base, parents), cache)
    for changed in range(len(parents)):
        others = [*nodes]
        others[changed] = 3 + (nodes[changed] + 40) % 90
        after = go(model, others, steps.tree(base, parents), cache)
        for node in range(len(parents)):
            unchanged = torch.equal(after[0, node], before[0, node])
            assert unchanged == (changed not in path_to(node, parents))


@pytest.mark.parametrize("name", WINDOWED)
@torch.inference_mode()
def test_a_deep_tree_node_no_longer_sees_what_its_window_left_behind(name: str) -> None:
    """The path counts, not the rows: siblings in between must not shrink the window."""
    model, base = staged(name), 2
    parents = [-1]
    for _ in range(WINDOW + 1):
        parents += [len(parents) - 1, len(parents) - 1]
    nodes = tokens(len(parents), seed=4)
    cache, steps = prefilled(model, tokens(base))
    ours = go(model, nodes, steps.tree(base, parents), cache)
    path = path_to(len(parents) - 1, parents)
    assert len(path) > WINDOW
    truth = plain(model, [*tokens(base), *(nodes[i] for i in path)])
    assert_near(ours[:, -1], truth[:, -1])


# Shapes that stay fixed

ROWS = 8


def fixed_pass(
    model: StagedModel, cache: KVCache, steps: StepMaker, start: int, ids: list[int]
) -> Tensor:
    shape = FixedShape(len(ids), CAPACITY)
    shaped = StepMaker(steps.capacity, steps.device, steps.window, shape)
    return go(model, ids, shaped.chain(start, len(ids)), cache)


@every_family
@torch.inference_mode()
def test_fixed_steps_equal_chain_steps(name: str) -> None:
    model, ids = staged(name), tokens(40)
    expected = plain(model, ids)
    for n in (1, 3, ROWS):
        for start in (1, 5, 20, 30):
            cache, steps = prefilled(model, ids[:start])
            ours = fixed_pass(model, cache, steps, start, ids[start : start + n])
            assert_near(ours, expected[:, start : start + n])
            # The rows it wrote serve the next pass.
            ours = fixed_pass(model, cache, steps, start + n, ids[start + n : start + n + 2])
            assert_near(ours, expected[:, start + n : start + n + 2])


@every_family
@torch.inference_mode()
def test_fixed_steps_do_not_read_rows_that_are_not_written_yet(name: str) -> None:
    model, prompt, ids = staged(name), tokens(12), tokens(4, seed=1)
    results = []
    for garbage in (None, 0, 1):
        cache, steps = prefilled(model, prompt)
        if garbage is not None:
            generator = torch.Generator().manual_seed(garbage)
            for layer in cache.layers:
                for kept in (cache._keys[layer], cache._values[layer]):
                    kept[:, :, 12:].normal_(0.0, 1e4, generator=generator)
        results.append(fixed_pass(model, cache, steps, 12, ids))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_a_row_of_a_fixed_step_is_the_same_bits_whatever_the_other_rows_hold(
    name: str, dtype: torch.dtype
) -> None:
    """What `--strict` rests on: greedy in row 0 equals verification in row i."""
    model = staged(name) if dtype is torch.float32 else StagedModel(stock_model(name).to(dtype))
    base, ids = 11, tokens(ROWS, seed=1)
    prompt = tokens(base)
    cache, steps = prefilled(model, prompt)
    together = model.logits(fixed_pass(model, cache, steps, base, ids))
    cache, steps = prefilled(model, prompt)
    for i, token in enumerate(ids):
        others = tokens(ROWS - 1, seed=10 + i)
        alone = model.logits(fixed_pass(model, cache, steps, base + i, [token, *others]))
        assert torch.equal(alone[0, 0], together[0, i])
    for i in range(ROWS):
        later = [*ids[: i + 1], *tokens(ROWS - 1 - i, seed=20 + i)]
        again = model.logits(fixed_pass(model, cache, steps, base, later))
        assert torch.equal(again[0, : i + 1], together[0, : i + 1])


# Taking a model over


def test_weight_bytes_count_each_stored_number_once() -> None:
    for name in ("llama", "llama-mha-tied"):
        stock = stock_model(name)
        plain_bytes = sum(p.numel() * 4 for p in stock.parameters())
        plain_bytes += sum(b.numel() * b.element_size() for b in _distinct_buffers(stock))
        head_copy = 96 * 32 * 4 if stock.config.tie_word_embeddings else 0
        assert StagedModel(copy.deepcopy(stock), packed=False).weight_bytes() == plain_bytes
        assert StagedModel(stock).weight_bytes() == plain_bytes + head_copy


def _distinct_buffers(module: nn.Module) -> list[Tensor]:
    return list({b.data_ptr(): b for b in module.buffers()}.values())
