"""Tokens that carry more than a state, and layers that look at keys and values of others."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from benchmarks.families import differs, tiny
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, at_meeting, wider
from ppdbench.errors import UnsupportedModel
from tests.engine.tiny_models import (
    CAPACITY,
    PROMPT,
    assert_as_near,
    forward,
    prefilled,
    refuse_rows_of_another_process,
    staged,
    stock,
    whole_pass,
)
from tests.helpers import assert_near, tokens

pytestmark = pytest.mark.usefixtures("inferring")

FAMILIES = ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
REMEMBERING = ("zamba", "zamba2")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("family", [*FAMILIES, *REMEMBERING, "zaya"])
def test_layers_above_a_cut_look_at_rows_that_those_below_it_wrote(family: str, cut: int) -> None:
    session = prefilled(staged(family))
    rows, below = [31, 77, 40], []
    for row, token in enumerate(rows, start=len(PROMPT)):  # below the cut one by one
        step = session.chain(1, row)
        below.append(session.run(session.embed(session.ids([token]), step), 0, cut, step))
    step = session.chain(len(rows), len(PROMPT))
    found = session.logits(session.run(torch.cat(below, dim=1), cut, 4, step))
    assert_near(found, whole_pass(stock(family), [*PROMPT, *rows], 3))


def test_branches_see_their_own_rows_of_layers_that_are_looked_at(family: str) -> None:
    session = prefilled(staged(family))
    step = session.tree([-1, -1, 0, 1])
    found = session.logits(session.forward(session.ids([31, 77, 40, 3]), step))
    for first in (0, 1):
        branch = [[31, 40], [77, 3]][first]
        assert_near(found[:, [first, first + 2]], whole_pass(stock(family), [*PROMPT, *branch], 2))
    session.cache.keep(len(PROMPT), [1, 3])
    assert_near(forward(session, [8]), whole_pass(stock(family), [*PROMPT, 77, 3, 8], 1))


def test_keys_and_values_that_others_look_at_are_made_where_attention_is_left_out(
    family: str,
) -> None:
    model = staged(family)
    shape = model.cache_shape
    assert shape.looked_at == {0, 1}
    skipped = SkippedModel(model, {0, 1, 2}, set())
    emptied = copy.deepcopy(stock(family))
    for i in (0, 1, 2):
        emptied.model.layers[i].self_attn.o_proj.weight.zero_()
    assert_near(prefilled(skipped).prefill(), whole_pass(emptied, PROMPT, 1))
    session = prefilled(model)
    view = skipped.over(session)
    for row, token in enumerate((31, 77), start=len(PROMPT)):
        view.forward(view.ids([token]), view.chain(1, row))
    assert [session.cache.lengths[i] for i in range(4)] == [21, 21, 19, 21]
    session.cache.truncate(len(PROMPT))
    assert_near(forward(session, [31, 9]), whole_pass(stock(family), [*PROMPT, 31, 9], 2))


def test_a_cache_holds_rows_of_the_size_of_each_layer_and_none_of_those_that_share() -> None:
    model = staged("gemma4_text")
    shape = model.cache_shape
    assert shape.sizes == ((2, 8), (1, 16), (2, 8), (1, 16))
    assert (shape.sources, shape.rowless) == ((0, 1, 0, 1), {2, 3})
    cache, _ = model.new_cache(20)
    assert cache.nbytes == shape.bytes(20) == 20 * 2 * (2 * 8 + 16) * 4
    # All layers look at rows, those with a window at as many as it holds.
    assert shape.seen_bytes(range(4), 20) == 2 * 2 * (7 * 16 + 20 * 16) * 4
    assert staged("gemma3n_text").cache_shape.sizes == ()


def test_layers_whose_rows_another_process_would_hold_are_refused() -> None:
    refuse_rows_of_another_process(staged("gemma4_text"))


def test_sequences_that_meet_look_each_at_its_own(family: str) -> None:
    place = MeetingPlace()
    model, found = at_meeting(staged(family), place), {}

    def work(seed: int) -> None:
        text = tokens(9 + seed, seed)
        session = prefilled(model, text)
        found[seed] = forward(session, [31, 77, 40][seed:]), [*text, *[31, 77, 40][seed:]]

    for seed in (0, 1):
        place.invite(partial(work, seed))
    while not place.is_over:
        place.advance()
    assert not place.unjoined
    for mine, text in found.values():
        assert_near(mine, whole_pass(stock(family), text, mine.shape[1]))


@pytest.mark.parametrize("family", [*FAMILIES, *REMEMBERING])
def test_the_same_in_a_wider_type_is_the_stock_model_in_that_type(family: str) -> None:
    found = prefilled(wider(staged(family))).prefill()
    assert found.dtype == torch.float64
    wide = copy.deepcopy(stock(family)).double()
    close = 1e-5 if family in REMEMBERING else 1e-6  # recurrent states are of float32 all the same
    torch.testing.assert_close(found, whole_pass(wide, PROMPT, 1), rtol=close, atol=close)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["mamba", "mamba2", "falcon_mamba"])
def test_mixers_that_look_at_weights_of_products_find_them_in_the_wider_type(
    family: str, dtype: torch.dtype, packed: bool
) -> None:
    narrow = copy.deepcopy(stock(family)).to(dtype)
    model = wider(StagedModel(copy.deepcopy(narrow), packed=packed))
    true = whole_pass(narrow.to(model.dtype), PROMPT, 1)
    found = prefilled(model).prefill()
    assert found.dtype == model.dtype != dtype
    torch.testing.assert_close(found.float(), true, rtol=1e-5, atol=1e-5)  # theirs are float32


def test_states_stay_in_float32_between_layers_that_compute_in_half_of_it() -> None:
    half = copy.deepcopy(stock("zaya")).bfloat16()
    model, rows = StagedModel(copy.deepcopy(half)), []
    session = Session(model, CAPACITY)
    session.reset(PROMPT)
    found = session.prefill(tap=lambda _, given: rows.append(given))
    assert {given.dtype for given in rows} == {torch.float32}
    assert any((given != given.bfloat16()).any() for given in rows)
    # Of one token alone: others may go to other experts by how they were rounded.
    theirs, true = whole_pass(half, PROMPT, 1), whole_pass(half.float(), PROMPT, 1)
    assert_as_near(found.float(), theirs.float(), true)
    assert_near(prefilled(wider(model)).prefill(), true)


def test_experts_beside_an_mlp_and_keys_that_are_values() -> None:
    model = tiny(
        "gemma4_text",
        enable_moe_block=True,
        top_k_experts=2,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
    )
    assert model.model.layers[1].self_attn.v_proj is None
    assert differs(model, 16) is None
    assert StagedModel(model).adapter.anatomy.experts


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_methods_that_make_states_are_refused_in_one_line(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"eagle: tokens of {family} carry more") as told:
        staged(family).adapter.check_one_state("eagle")
    assert "\n" not in str(told.value)
    staged("gemma4_unified_text").adapter.check_one_state("eagle")


def test_passes_of_such_models_are_not_captured_and_say_why() -> None:
    for family, why in (
        ("gemma4_text", "its layers take more of a token than one state"),
        ("gemma4_unified_text", "some of its layers look at keys and values of others"),
    ):
        assert str(staged(family).graphs.why_not()) == why
