"""Whole decoding runs over several devices: exact, and no strategy has to know of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ppdbench.decoding.decoder import Decoder, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.methods import METHODS
from ppdbench.methods.hidden_transfer.network import TransferMatrices
from ppdbench.methods.hidden_transfer.strategy import HiddenTransferProposer
from ppdbench.probe.match import Prober
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, Case, Oracle, assert_exact
from tests.devices import devices, split
from tests.helpers import staged, tokens

# Near the capacity, so that an oracle has little to find out.
PLAIN = Case("plain", tokens(CAPACITY - 16), Limits(8))
REPEATING = Case("repeating", tokens(4, 11) * 3, Limits(8))
TREE = Tree(((0,), (1,), (0, 0), (0, 1), (1, 0)))


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    with devices(), torch.inference_mode():
        yield


def loaded(name: str) -> Loaded:
    return Loaded(ModelSpec(device="cpu"), split(name), None, frozenset(), 0, "")


def transferring() -> Decoder:
    """Rows that join in the middle, made of what a layer on another device gave."""
    return HiddenTransferProposer(
        TransferMatrices((1, 2, 3), (torch.eye(32),) * 3), TREE, {}, masked=False
    )


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "opt-350m-like"])
def test_chains_and_trees_are_exact_over_several_devices(name: str) -> None:
    for oracle in (Oracle(staged(name), 3, 2), Oracle(staged(name), 3, 2, tree=True)):
        assert_exact(oracle, PLAIN, split(name))


@pytest.mark.parametrize("method", ["layerskip", "draft-verify", "lookahead", "jacobi", "ppd"])
def test_strategies_that_run_some_layers_are_exact_over_several_devices(method: str) -> None:
    target = loaded("llama")
    decoder = METHODS.get(method).build({}).prepare(Setup(target, CAPACITY))
    decoder.begin()
    for case in (PLAIN, REPEATING):
        assert_exact(decoder, case, target.staged)


def test_rows_that_join_on_another_device_leave_the_output_alone() -> None:
    for case in (PLAIN, REPEATING):
        assert_exact(transferring(), case, split("llama"))


def test_a_fixed_shape_is_exact_over_several_devices() -> None:
    oracle = Oracle(staged("llama"), 3, 2)
    assert_exact(oracle, PLAIN, split("llama"), fixed_rows=oracle.rows)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_probing_finds_the_same_ranks_over_several_devices(name: str) -> None:
    prompts, seeds = [tokens(9), tokens(5, 1)], [torch.Generator(), torch.Generator()]
    found = []
    for model in (split(name), staged(name)):
        held = Loaded(ModelSpec(device="cpu"), model, None, frozenset(), 0, "")
        found.append(Prober(held, [1, 2, 3, 4], 32).probe(prompts, 6, Target(), seeds))
    for ours, theirs in zip(*found, strict=True):
        assert (ours.output_ids, ours.ranks) == (theirs.output_ids, theirs.ranks)
