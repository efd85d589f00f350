"""Captured passes give what eager ones give; the device's recording is a plain call made again."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from ppdbench.engine.graphs import CapturedFunction, Graphs
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, eager
from tests.capturing import Repeated
from tests.decoding.matrix import Oracle, assert_exact, cases
from tests.families import FAMILIES, stock_model
from tests.helpers import CAPACITY, WINDOWED, assert_near, tokens


def captured(
    name: str, *counts: int, dtype: torch.dtype = torch.float32
) -> tuple[StagedModel, Repeated]:
    model, capture = StagedModel(stock_model(name).to(dtype)), Repeated()
    model.graphs = Graphs(model.adapter, capture)
    model.graphs.use(counts)
    return model, capture


@torch.inference_mode()
def outputs(model: StagedModel) -> list[Tensor]:
    """Logits of a prefill, of single rows, of chains and of a tree, kept and gone on from."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(tokens(11))
    found = [session.prefill()]
    found += [session.advance(session.ids([token])) for token in tokens(3, 1)]
    for n in (2, 3, 4):
        found.append(session.logits(session.forward(session.ids(tokens(n, n)))))
        session.cache.truncate(session.cached - 1)
    start = session.cached
    tree = session.tree((-1, 0, 0, 1))
    found.append(session.logits(session.forward(session.ids(tokens(4, 7)), tree)))
    session.cache.keep(start, [0, 2])
    found.append(session.advance(session.ids([5])))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_kind_of_pass_gives_what_it_gives_eagerly(name: str, dtype: torch.dtype) -> None:
    model, capture = captured(name, 1, 3, 4, dtype=dtype)
    with eager(model):
        truth = outputs(model)
    for ours, expected in zip(outputs(model), truth, strict=True):
        assert ours.dtype == expected.dtype == dtype
        assert_near(ours.float(), expected.float(), 1e-5 if dtype == torch.float32 else 2**-3)
    # A graph for 1, 3 and 4 rows in order, one for the tree, and a head for each count.
    assert capture.made == 4 + 3


def test_inputs_are_copied_in_and_outputs_copied_out() -> None:
    seen: list[int] = []

    def double(x: Tensor) -> list[Tensor]:
        seen.append(x.data_ptr())
        return [2 * x]

    first = torch.tensor([1.0, 2.0])
    call = CapturedFunction(double, [first], Repeated())
    (one,) = call(first)
    (two,) = call(torch.tensor([5.0, 6.0]))
    assert one.tolist() == [2.0, 4.0]
    assert two.tolist() == [10.0, 12.0]
    assert len(set(seen)) == 1
    assert seen[0] != first.data_ptr()


def test_one_graph_serves_all_positions_up_to_a_number_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ppdbench.engine.graphs.FEWEST_KEYS", 16)
    model, capture = captured("llama", 1)
    session = Session(model, CAPACITY)
    with torch.inference_mode():
        session.reset(tokens(9))
        session.prefill()
        before = capture.made
        for token in tokens(14, 2):
            session.forward(session.ids([token]))
    assert session.cached == 23
    assert capture.made - before == 2  # 16 keys, then 32


def test_what_taps_keep_is_not_written_over() -> None:
    model, _ = captured("llama", 2)
    kept: list[list[Tensor]] = [[], []]
    with torch.inference_mode():
        session = Session(model, CAPACITY)
        session.reset(tokens(5))
        session.prefill()
        for seen in kept:
            ids = session.ids(tokens(2, len(seen) + session.cached))
            session.forward(ids, tap=lambda layer, hidden, seen=seen: seen.append(hidden))
            if seen is kept[0]:
                copies = [hidden.clone() for hidden in seen]
    assert all(map(torch.equal, kept[0], copies))
    assert [hidden.shape for hidden in kept[1]] == [(1, 2, model.hidden_size)] * model.n_layers


def test_each_cache_has_graphs_of_its_own() -> None:
    model, _ = captured("llama", 1)
    with torch.inference_mode():
        sessions = [Session(model, CAPACITY) for _ in range(2)]
        answers = []
        for session in (*sessions, sessions[0]):
            session.reset(tokens(6))
            session.prefill()
            answers.append(session.advance(session.ids([4])))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_a_pass_at_the_end_of_the_cache_leaves_no_row_to_fill_up_and_runs_eagerly() -> None:
    model, capture = captured("llama", 4)
    with torch.inference_mode():
        session = Session(model, 8)
        session.reset(tokens(6))
        session.prefill()
        session.forward(session.ids([3, 4]))
    assert capture.made == 1  # the head over the prompt's last row


def test_a_model_without_some_blocks_has_graphs_of_what_is_left() -> None:
    model, _ = captured("llama", 1)
    skipping = SkippedModel(model, {1}, {2})
    with eager(model):
        plainly = SkippedModel(model, {1}, {2})
    answers = []
    with torch.inference_mode():
        for one in (skipping, plainly):
            session = Session(model, CAPACITY)
            session.reset(tokens(6))
            session.prefill()
            answers.append(one.over(session).advance(session.ids([4])))
    assert_near(*answers)


@pytest.mark.parametrize("name", ["llama", WINDOWED[0]])
def test_drafts_are_verified_exactly_on_captured_passes(name: str) -> None:
    model, capture = captured(name, 1, 7)
    for tree in (False, True):
        for case in itertools.islice(cases(model), 4):
            assert_exact(Oracle(model, 3, wrong_from=2, tree=tree), case, model)
    assert capture.made > 0
