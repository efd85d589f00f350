"""Flat passes: rows of chains, trees and batches, each as if it were alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft, Insertion
from ppdbench.decoding.passes import run_pass
from ppdbench.engine.flat import passes
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import Tap
from tests import flat_ops
from tests.engine.flat.made import DTYPES, made
from tests.helpers import CAPACITY, tokens


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    flat_ops.stand_in(monkeypatch)


@torch.inference_mode()
def one_by_one(model: StagedModel, ids: list[int]) -> tuple[Tensor, Session]:
    session = Session(model, CAPACITY, spare=12)
    session.reset(tokens(9))
    session.prefill()
    return torch.cat([session.advance(session.ids([token])) for token in ids], 1), session


@torch.inference_mode()
def drafted(model: StagedModel, draft: Draft, first: int) -> Tensor:
    session = Session(model, CAPACITY, spare=12)
    session.reset([*tokens(9), first])
    session.steps.prefill(9)
    session.forward(session.ids(tokens(9)), session.steps.prefill(9))
    return session.logits(run_pass(session, draft, start=9))


def repeated(hidden: Tensor, n: int) -> Tensor:
    return hidden[:, :1].expand(-1, n, -1)


TREE = (-1, -1, 0, 0, 1, 3)  # of nodes; 0 and 1 hang on the newest token
BRANCH = (0, 3, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2-window", "gemma2", "gpt2", "gpt_neox", "opt"])
def test_rows_of_chains_trees_and_passes_that_others_join_are_those_of_single_ones(
    name: str, dtype: torch.dtype
) -> None:
    model, ids = made(name, dtype), [7, 8, 9, 10]
    single, _ = one_by_one(model, ids)
    chain = drafted(model, Draft(tuple(ids[1:])), ids[0])
    assert torch.equal(chain, single)
    nodes = [50, 60, 51, 52, 61, 53]
    for place, token in zip(BRANCH, ids[1:], strict=True):
        nodes[place] = token
    branch = [0, *(1 + node for node in BRANCH)]
    assert torch.equal(drafted(model, Draft(tuple(nodes), TREE), ids[0])[:, branch], single)
    joining = Insertion(2, partial(repeated, n=2), ((), (0, 7)), (1, 2))
    joined = Draft(tuple(nodes), TREE, insertions=(joining,))
    assert torch.equal(drafted(model, joined, ids[0])[:, branch], single)


@torch.inference_mode()
def test_layers_in_stretches_and_behind_taps_are_those_of_one_run() -> None:
    model, seen = made("llama"), dict[int, Tensor]()
    whole, session = one_by_one(model, [7, 8])
    session.cache.truncate(10)
    step = session.chain(1)
    hidden = session.run(session.embed(session.ids([8]), step), 0, 1, step, tap=seen.__setitem__)
    hidden = session.run(hidden, 1, model.n_layers, step, tap=seen.__setitem__)
    assert torch.equal(session.logits(hidden), whole[:, 1:])
    assert sorted(seen) == [1, 2, 3, 4]
    assert torch.equal(seen[4], hidden)


@pytest.mark.parametrize(("rows", "runs"), [(1, 1), (2, 2), (3, 4)])
@torch.inference_mode()
def test_a_tap_stops_narrow_passes_nowhere_and_lets_go_of_a_prompts_states(
    rows: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids, log = made("llama"), tokens(3)[:rows], list[int]()
    real = passes.run_all
    monkeypatch.setattr(passes, "AT_ONCE", 4)
    monkeypatch.setattr(passes, "run_all", lambda calls: (log.append(0), real(calls)))

    def states(tap: Tap) -> Tensor:
        session = Session(model, CAPACITY)
        return session.forward(session.ids(ids), session.steps.prefill(rows), tap=tap)

    at_once: dict[int, Tensor] = {}
    last = states(lambda layer, hidden: (log.append(layer), at_once.update({layer: hidden})))
    assert log.count(0) == runs
    assert log[-4 // runs :] == [*range(5 - 4 // runs, 5)]
    assert torch.equal(at_once[4], last)
    model.flat = None
    eager: dict[int, Tensor] = {}
    states(eager.__setitem__)
    assert sorted(at_once) == sorted(eager) == [1, 2, 3, 4]
    for layer, hidden in eager.items():
        assert torch.allclose(at_once[layer], hidden, atol=1e-4)
