"""The KV cache: what it refuses, what it moves, and that its storage stays where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ppdbench.engine.cache import CacheShape, KVCache
from ppdbench.engine.masks import FixedShape, Step, StepMaker
from ppdbench.engine.session import Session
from tests.helpers import go, staged, tokens

CPU = torch.device("cpu")
SHAPE = CacheShape(
    n_layers=3,
    n_heads=2,
    head_dim=4,
    windows=(None, 3, None),
    devices=(CPU, CPU, CPU),
    dtype=torch.float32,
)
STEPS = StepMaker(32, CPU)


def fixed(rows: int, keys: int) -> StepMaker:
    return StepMaker(STEPS.capacity, CPU, shape=FixedShape(rows, keys))


def write(cache: KVCache, step: Step, *layers: int) -> dict[int, tuple[Tensor, Tensor]]:
    """What attention does: rows with the value of their number, keys plus 0.5, layers by 100."""
    layers = layers or tuple(cache.layers)
    cache.begin(step, layers[0], layers[-1] + 1)
    first = step.start if step.rows is None else int(step.rows[0])
    numbers = torch.arange(first, first + step.n_query).float()[None, None, :, None]
    found = {}
    for i in layers:
        heads, width = cache.shape.size_of(i)
        rows = (numbers + 100 * i).expand(1, heads, -1, width).to(cache.shape.dtype)
        found[i] = cache.update(rows + 0.5, rows, i)
    return found


def row_numbers(cache: KVCache, layer: int) -> list[float]:
    """Which rows a layer holds, keys and values, all heads and sequences, agreeing on it."""
    keys, values = cache.rows(layer)
    assert torch.equal(keys, values + 0.5)
    assert torch.equal(values, values[:1, :1, :, :1].expand_as(values))
    numbers: list[float] = (values[0, 0, :, 0] - 100 * layer).tolist()
    return numbers


# What it refuses


@pytest.mark.parametrize(("start", "n_query"), [(0, 9), (8, 1), (5, 4)])
def test_a_pass_beyond_the_capacity_is_refused(start: int, n_query: int) -> None:
    cache = KVCache(SHAPE, 8)
    if start:
        write(cache, STEPS.chain(0, start))
    with pytest.raises(ValueError, match=rf"ends at row {start + n_query}.*holds 8"):
        cache.begin(STEPS.chain(start, n_query), 0, 3)
    assert set(cache.lengths.values()) == {start}


def test_a_pass_that_fills_the_last_row_is_not_refused() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 5))
    write(cache, STEPS.chain(5, 3))
    assert row_numbers(cache, 2) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_fixed_pass_that_reads_more_rows_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="the cache holds 8"):
        KVCache(SHAPE, 8).begin(fixed(2, 9).chain(0, 2), 0, 3)


def test_a_gap_is_refused_and_the_layer_named() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 4), 0, 1, 2)
    write(cache, STEPS.chain(4, 2), 0, 1)
    with pytest.raises(ValueError, match=r"layer 2 holds 4 rows.*row 6 would leave a gap"):
        cache.begin(STEPS.chain(6, 1), 0, 3)


def test_a_refused_pass_leaves_every_length_as_it_was() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 4), 0, 1, 2)
    write(cache, STEPS.chain(4, 3), 0, 1)
    with pytest.raises(ValueError, match="gap"):
        cache.begin(STEPS.chain(5, 1), 0, 3)
    assert cache.lengths == {0: 7, 1: 7, 2: 4}


@pytest.mark.parametrize("rows", [[1, 0], [0, 0], [-1], [-1, 0], [0, 2, 1], [2, 2]])
def test_rows_to_keep_must_rise(rows: list[int]) -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 6))
    with pytest.raises(ValueError, match="must rise from 0"):
        cache.keep(2, rows)
    assert row_numbers(cache, 0) == [0, 1, 2, 3, 4, 5]


def test_rows_that_a_layer_does_not_hold_cannot_be_kept() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 6), 0, 1, 2)
    write(cache, STEPS.chain(3, 1), 2)
    with pytest.raises(ValueError, match=r"layer 2 holds 4 rows"):
        cache.keep(2, [0, 2])
    assert row_numbers(cache, 0) == [0, 1, 2, 3, 4, 5]


# Lengths


def test_layers_may_stand_at_different_lengths() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 3), 0, 1, 2)
    write(cache, STEPS.chain(3, 2), 0, 1)
    write(cache, STEPS.chain(5, 1), 0)
    assert cache.lengths == {0: 6, 1: 5, 2: 3}
    write(cache, STEPS.chain(3, 3), 1, 2)
    assert cache.lengths == {0: 6, 1: 6, 2: 6}
    assert [row_numbers(cache, i) for i in range(3)] == [[0, 1, 2, 3, 4, 5]] * 3


def test_a_pass_before_a_layers_end_drops_what_lay_behind() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 6))
    write(cache, STEPS.chain(2, 1), 0, 1)
    assert cache.lengths == {0: 3, 1: 3, 2: 6}


def test_truncate_shortens_and_never_lengthens() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 6), 0, 1, 2)
    write(cache, STEPS.chain(1, 2), 2)
    cache.truncate(4)
    assert cache.lengths == {0: 4, 1: 4, 2: 3}
    assert row_numbers(cache, 0) == [0, 1, 2, 3]
    cache.truncate(7)
    assert cache.lengths == {0: 4, 1: 4, 2: 3}
    cache.truncate(0)
    assert cache.lengths == {0: 0, 1: 0, 2: 0}


def test_a_cache_of_some_layers_holds_those_alone() -> None:
    cache = KVCache(SHAPE, 8, layers=range(1, 3))
    write(cache, STEPS.chain(0, 4), 1, 2)
    assert list(cache.lengths) == [1, 2]
    assert cache.nbytes * 3 == KVCache(SHAPE, 8).nbytes * 2
    with pytest.raises(KeyError):
        cache.begin(STEPS.chain(4, 1), 0, 3)


def test_one_layer_and_the_shortest_are_asked_for_by_themselves() -> None:
    cache = KVCache(SHAPE, 8, layers=range(1, 3))
    write(cache, STEPS.chain(0, 4), 1, 2)
    write(cache, STEPS.chain(2, 1), 1)
    assert (cache.length(1), cache.length(2), cache.shortest) == (3, 4, 3)
    with pytest.raises(KeyError, match=r"layers \[0, 1\) in a cache for range\(1, 3\)"):
        cache.length(0)


# Moving rows


def test_a_row_that_was_taken_is_put_back_in_this_cache_and_another() -> None:
    cache, other = KVCache(SHAPE, 8), KVCache(SHAPE, 5)
    write(cache, STEPS.chain(0, 6))
    write(other, STEPS.chain(0, 4))
    taken = cache.taken(4)
    write(cache, STEPS.chain(2, 3))
    for each, row in ((cache, 2), (other, 1)):
        each.put_back(row, taken)
        assert [row_numbers(each, i)[row] for i in range(3)] == [4, 4, 4]
        assert row_numbers(each, 0)[:row] == list(range(row))


@pytest.mark.parametrize(
    ("base", "rows", "left"),
    [
        (2, [1, 3, 4], [0, 1, 3, 5, 6]),
        (2, [0, 1], [0, 1, 2, 3]),
        (2, [], [0, 1]),
        (0, [5], [5]),
        (4, [0, 3], [0, 1, 2, 3, 4, 7]),
        (3, [1, 2, 3, 4], [0, 1, 2, 4, 5, 6, 7]),
    ],
)
def test_keep_moves_the_rows_it_names_in_every_layer(
    base: int, rows: list[int], left: list[float]
) -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 8))
    cache.keep(base, rows)
    assert [row_numbers(cache, i) for i in range(3)] == [left] * 3


def test_keep_moves_rows_of_layers_that_differ_in_size() -> None:
    """Such layers are stored apart from one another."""
    shape = replace(SHAPE, sizes=((2, 4), (1, 6), (4, 2)))
    for layers in (range(3), range(1, 3), range(1, 2)):
        cache = KVCache(shape, 8)
        write(cache, STEPS.chain(0, 8))
        cache.keep(2, [1, 3, 4], layers)
        for layer in range(3):
            left = [0, 1, 3, 5, 6] if layer in layers else [0, 1, 2, 3, 4, 5, 6, 7]
            assert row_numbers(cache, layer) == left


# What it stores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_have_the_models_heads_and_dtype_and_nbytes_counts_them(dtype: torch.dtype) -> None:
    shape = replace(SHAPE, dtype=dtype)
    cache = KVCache(shape, 16)
    write(cache, STEPS.chain(0, 5))
    for kept in cache.rows(1):
        assert kept.shape == (1, 2, 5, 4)
        assert kept.dtype == dtype
    # 3 layers, keys and values, 2 heads, 16 rows, 4 numbers each
    assert cache.nbytes == 3 * 2 * 2 * 16 * 4 * dtype.itemsize
    assert shape.bytes(16) == cache.nbytes


def test_a_new_cache_holds_zeros() -> None:
    """Masked rows still enter products, where anything infinite would spoil the result."""
    cache = KVCache(SHAPE, 8)
    keys, values = write(cache, fixed(1, 8).chain(0, 1))[0]
    assert not keys[:, :, 1:].any()
    assert not values[:, :, 1:].any()


def test_a_fixed_pass_writes_its_own_rows_and_returns_all() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 5))
    seen = write(cache, fixed(2, 8).chain(3, 2))
    for layer in range(3):
        keys, values = seen[layer]
        expected = torch.tensor([0, 1, 2, 3, 4, 0, 0, 0]) + 100.0 * layer
        assert (values[0, 1, :5, 2] == expected[:5]).all()
        assert not values[:, :, 5:].any()
        assert keys.shape[2] == values.shape[2] == 8


def test_a_single_query_reads_no_more_than_its_window() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 5))
    seen = write(cache, STEPS.chain(5, 1))
    assert seen[0][1][0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert seen[1][1][0, 0, :, 0].tolist() == [103, 104, 105]
    assert seen[1][0][0, 0, :, 0].tolist() == [103.5, 104.5, 105.5]


def test_several_queries_and_masked_ones_read_every_row_so_far() -> None:
    cache = KVCache(SHAPE, 8)
    write(cache, STEPS.chain(0, 4))
    for step in (STEPS.chain(4, 2), STEPS.tree(4, [-1])):
        assert write(cache, step)[1][0].shape[2] == step.end


@torch.inference_mode()
def test_storage_is_allocated_once_and_written_in_place() -> None:
    session = Session(staged("llama"), 48)
    cache, shaped = session.cache, StepMaker(48, CPU, shape=FixedShape(4, 48))

    def addresses() -> list[int]:
        kept = [*cache._keys.values(), *cache._values.values()]
        return [t.data_ptr() for t in kept]

    before = addresses()
    returned: set[int] = set()
    keep_update = cache.update

    def watch(key: Tensor, value: Tensor, layer: int, *rest: object, **more: object) -> object:
        out = keep_update(key, value, layer, *rest, **more)
        returned.update(t.data_ptr() for t in out)
        return out

    cache.update = watch  # type: ignore[method-assign, assignment]
    for seed in range(2):
        session.reset(tokens(10, seed))
        session.prefill()
        for token in tokens(3, seed):
            session.advance(torch.tensor([[token]]))
        go(session.model, tokens(4), session.steps.tree(13, [-1, -1, 0, 1]), cache)
        cache.keep(13, [1, 3])
        go(session.model, tokens(4), shaped.chain(15, 4), cache)
        session.rollback(9)
    assert addresses() == before
    assert returned == set(before)
