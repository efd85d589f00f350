"""Taps: what they are handed, and which layers may be run in one go for them."""

from __future__ import annotations

import torch

from ppdbench.engine.taps import StateTap, joined, stretches


def test_a_tap_keeps_what_its_layers_give_alone() -> None:
    kept: dict[int, torch.Tensor] = {}
    tap = StateTap((2, 4), kept)
    for layer in range(1, 5):
        tap(layer, torch.tensor(layer))
    assert {layer: int(state) for layer, state in kept.items()} == {2: 2, 4: 4}


def test_layers_are_run_in_one_go_up_to_where_a_tap_looks() -> None:
    layers = range(3, 8)
    assert list(stretches(layers, None)) == [8]
    assert list(stretches(layers, StateTap((2, 5, 6), {}))) == [5, 6, 8]
    assert list(stretches(layers, StateTap((8,), {}))) == [8]
    assert list(stretches(layers, print)) == [4, 5, 6, 7, 8]


def test_taps_that_are_joined_see_what_any_of_them_wants() -> None:
    assert joined([None, None], {}) is None
    both = joined([StateTap((1,), {}), None, StateTap((3,), {})], {})
    assert list(stretches(range(4), both)) == [1, 3, 4]
    anything = joined([StateTap((1,), {}), print], {})
    assert list(stretches(range(4), anything)) == [1, 2, 3, 4]
