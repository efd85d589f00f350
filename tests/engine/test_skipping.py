"""A model without some blocks is the stock model whose blocks contribute nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from tests.engine.silenced import PROMPT, pair, silenced
from tests.families import FAMILIES
from tests.helpers import CAPACITY, assert_near, staged, tokens

SETS: list[tuple[set[int], set[int]]] = [
    (set(), set()),
    ({1}, set()),
    (set(), {2}),
    ({1, 2}, {2}),
    ({0, 3}, {0, 1}),
    ({0, 1, 2, 3}, {1, 2, 3}),
    ({0, 1, 2}, {0, 1, 2, 3}),
]
NEW = tokens(4, 3)


def prefilled(model: StagedModel, fixed_rows: int | None = None) -> Session:
    session = Session(model, CAPACITY, spare=8, fixed_rows=fixed_rows)
    session.reset(PROMPT)
    session.prefill()
    return session


def drafted(view: Session, new: list[int]) -> list[Tensor]:
    """Logits after each of `new`, run one by one behind the prompt."""
    return [
        view.logits(view.forward(view.ids([token]), view.chain(1, len(PROMPT) + i)))[0, -1]
        for i, token in enumerate(new)
    ]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@torch.inference_mode()
def test_skipped_blocks_contribute_nothing(name: str, packed: bool) -> None:
    stock, model = pair(name, packed)
    for attention, mlp in SETS:
        session = Session(SkippedModel(model, attention, mlp), CAPACITY)
        session.reset(PROMPT * 2)
        ours = session.prefill()[:, -1]
        with silenced(stock, attention, mlp):
            truth = stock(torch.tensor([PROMPT * 2])).logits[:, -1]
        assert_near(ours, truth)


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_drafts_run_over_the_exact_rows_of_the_whole_model(name: str) -> None:
    stock, model = pair(name)
    for attention, mlp in SETS:
        view = SkippedModel(model, attention, mlp).over(prefilled(model))
        ours = drafted(view, NEW)
        cache = stock(torch.tensor([PROMPT]), use_cache=True).past_key_values
        with silenced(stock, attention, mlp):
            for token, logits in zip(NEW, ours, strict=True):
                truth = stock(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                assert_near(logits, truth.logits[0, -1])


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_the_whole_model_stays_as_it_was(name: str) -> None:
    model = staged(name)
    session = prefilled(model)
    before = session.logits(session.forward(session.ids(NEW)))
    held = [tuple(t.clone() for t in session.cache.rows(i)) for i in range(model.n_layers)]
    session.cache.truncate(len(PROMPT))
    drafted(SkippedModel(model, {1, 2}, {0, 2}).over(session), tokens(4, 8))
    session.cache.truncate(len(PROMPT))
    assert torch.equal(session.logits(session.forward(session.ids(NEW))), before)
    for i, rows in enumerate(held):
        assert all(map(torch.equal, session.cache.rows(i), rows))


@torch.inference_mode()
def test_layers_without_attention_keep_their_rows_and_length() -> None:
    model = staged("llama")
    session = prefilled(model)
    untouched = session.cache._keys[1].clone()
    drafted(SkippedModel(model, {1, 3}, {0}).over(session), NEW)
    n = len(PROMPT)
    assert session.cache.lengths == {0: n + 4, 1: n, 2: n + 4, 3: n}
    assert session.cached == n
    assert torch.equal(session.cache._keys[1], untouched)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "opt-350m-like"])
@torch.inference_mode()
def test_a_fixed_shape_changes_nothing(name: str) -> None:
    model = staged(name)
    skipped = SkippedModel(model, {1, 2}, {2, 3})
    free = drafted(skipped.over(prefilled(model)), NEW)
    fixed = drafted(skipped.over(prefilled(model, fixed_rows=6)), NEW)
    for ours, truth in zip(fixed, free, strict=True):
        assert_near(ours, truth)


@torch.inference_mode()
def test_a_layer_of_which_nothing_is_left_is_not_called() -> None:
    model = staged("llama")
    skipped = SkippedModel(model, {1, 2}, {1, 3})
    called: list[int] = []
    call = skipped.adapter.call_layer

    def noted(index: int, *arguments: Any) -> Tensor:
        called.append(index)
        return call(index, *arguments)

    skipped.adapter.call_layer = noted  # type: ignore[method-assign]
    session = Session(skipped, CAPACITY)
    session.reset(PROMPT)
    each: list[int] = []
    session.prefill(tap=lambda layer, _hidden: each.append(layer))
    assert called == [0, 2, 3]
    assert each == [1, 2, 3, 4]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_cost_is_the_share_of_weights_that_a_pass_reads(packed: bool) -> None:
    model = staged("llama", packed)
    attention, mlp, head = 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 48, 96 * 32
    whole = 4 * (attention + mlp) + head
    assert SkippedModel(model, set(), set()).cost() == 1
    cost = SkippedModel(model, {0, 2, 3}, {1}).cost()
    assert cost == pytest.approx((whole - 3 * attention - mlp) / whole)


def test_a_layer_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"layer 4: use 0\.\.3"):
        SkippedModel(staged("llama"), {4}, set())
