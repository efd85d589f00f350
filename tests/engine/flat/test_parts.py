"""Attention that runs flat in layers whose experts and memories do not."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine import packing
from ppdbench.engine.flat import choice, latent, layers, parts, passes, products
from ppdbench.engine.flat.choice import EAGER, FASTER, FLAT, IN_PARTS, PairedTime, kind_of_passes
from ppdbench.engine.flat.weights import FlatLinear, pack
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, at_meeting
from ppdbench.errors import UnsupportedModel
from tests.engine.tiny_models import assert_as_near_in_half
from tests.helpers import CAPACITY, assert_near, tokens

TEXT, MORE = tokens(11), [7, 8, 9, 10, 11]
# Families, and the layers of which all runs flat, or the attention.
EXPERTS = {
    "afmoe": ([], [0, 1, 2, 3]),
    "axk1": ([0], [1, 2, 3]),
    "deepseek_v2": ([], [0, 1, 2, 3]),
    "deepseek_v3": ([0, 1, 2], [3]),
    "exaone_moe": ([0], [1, 2, 3]),
    "glm4_moe": ([0], [1, 2, 3]),
    "glm4_moe_lite": ([0], [1, 2, 3]),
    "gpt_oss": ([], [0, 1, 2, 3]),
    "laguna": ([0], [1, 2, 3]),
    "llama4_text": ([0, 2], [1, 3]),
    "mimo_v2_flash": ([0], [1, 2, 3]),
    "mixtral": ([], [0, 1, 2, 3]),
    "olmoe": ([], [0, 1, 2, 3]),
    "qwen3_moe": ([], [0, 1, 2, 3]),
}
MEMORIES = {
    "bailing_hybrid": ([], [1, 3]),
    "granitemoehybrid": ([], [1, 3]),
    "jamba": ([], [1, 3]),
    "kimi_linear": ([], [1, 3]),
    "lfm2": ([], [1, 3]),
    "lfm3": ([], [1, 3]),
    "olmo_hybrid": ([1, 3], []),
    "qwen3_5_text": ([], [1, 3]),
}
BOTH = {**EXPERTS, **MEMORIES}
EXPERTS_OF_GEMMA: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}
# Settings that bring out what a family does at times.
SETTINGS: dict[str, dict[str, Any]] = {
    "mimo_v2_flash": {"attention_value_scale": 0.6},
    "olmoe": {"clip_qkv": 0.5},
    "zamba2": {
        "num_key_value_heads": 4,
        "use_mem_rope": True,
        "use_shared_attention_adapter": True,
        "adapter_rank": 4,
    },
    # The last layers turn no heads, and queries grow within the text of a test.
    "llama4_text": {
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 1, 0, 0],
        "floor_scale": 4,
        "attn_scale": 0.5,
    },
    "laguna": {
        "num_attention_heads_per_layer": [4, 2, 4, 2],
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    },
    "falcon_h1": {"key_multiplier": 0.7, "attention_out_multiplier": 1.5},
    "cohere2_moe": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
    },
    "gemma4_text": {
        **EXPERTS_OF_GEMMA,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": True,
    },
}
# Families whose layers do more around their attention, and those whose attention is flat.
WITHIN = {
    "cohere2_moe": [2, 3],
    "dbrx": [0, 1, 2, 3],
    "falcon_h1": [0, 1, 2, 3],
    "gemma4_text": [0, 1, 2, 3],
    "jetmoe": [0, 1, 2, 3],
    "nemotron_h": [2],
    "zamba": [1, 3],
    "zamba2": [1, 3],
    "zaya": [0, 1, 2, 3],
}


def described(family: str) -> Any:
    return tiny(family, **SETTINGS.get(family, {}))


def made(family: str, stock: Any = None) -> StagedModel:
    model = StagedModel(described(family) if stock is None else stock, passes=FLAT)
    assert model.parts is not None, model.path.why
    return model


@torch.inference_mode()
def rows(model: StagedModel) -> list[Tensor]:
    """Logits of a chain behind a text, and of a row behind a part of it that was kept."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(TEXT)
    session.prefill()
    chain = session.logits(session.forward(session.ids(MORE)))
    session.cache.keep(len(TEXT), [0, 1], range(model.n_layers))
    return [chain, session.advance(session.ids([5]))]


@pytest.mark.parametrize("family", BOTH)
def test_logits_are_those_of_stock_where_attention_alone_is_flat(family: str) -> None:
    stock = described(family)
    model = made(family, copy.deepcopy(stock))
    assert model.parts is not None and model.flat is None
    assert (sorted(model.parts.wholes), sorted(model.parts.halves)) == BOTH[family]
    chain, row = rows(model)
    with torch.no_grad():
        assert_near(chain, stock(torch.tensor([[*TEXT, *MORE]])).logits[:, -len(MORE) :])
        assert_near(row, stock(torch.tensor([[*TEXT, *MORE[:2], 5]])).logits[:, -1:])


def test_gates_may_let_through_each_number_of_a_head_or_all_of_them() -> None:
    for gating, gates in (("per-head", 4), ("per-element", 32)):
        stock = tiny("laguna", gating=gating)
        assert stock.model.layers[0].self_attn.g_proj.out_features == gates
        chain, _ = rows(made("laguna", copy.deepcopy(stock)))
        with torch.no_grad():
            assert_near(chain, stock(torch.tensor([[*TEXT, *MORE]])).logits[:, -len(MORE) :])


@pytest.mark.parametrize("family", WITHIN)
def test_logits_are_those_of_stock_where_attention_is_flat_within_a_layer(family: str) -> None:
    stock = described(family)
    model = made(family, copy.deepcopy(stock))
    assert model.parts is not None and sorted(model.parts.within) == WITHIN[family]
    chain, row = rows(model)
    with torch.no_grad():
        assert_near(chain, stock(torch.tensor([[*TEXT, *MORE]])).logits[:, -len(MORE) :])
        assert_near(row, stock(torch.tensor([[*TEXT, *MORE[:2], 5]])).logits[:, -1:])


@pytest.mark.parametrize("family", ["falcon_h1", "zamba2"])
def test_in_half_precision_flat_attention_leaves_a_layer_as_near_to_what_is_true(
    family: str,
) -> None:
    stock, text = described(family).bfloat16(), tokens(40)
    model = made(family, copy.deepcopy(stock))
    assert_as_near_in_half(stock, model, text)


def test_attention_that_looks_at_rows_of_another_process_is_left_to_be_refused() -> None:
    model = made("gemma4_text", tiny("gemma4_text", **EXPERTS_OF_GEMMA))
    session = Session(model, CAPACITY)
    session.cache, _ = model.new_cache(CAPACITY, layers=range(2, 4))
    step = session.steps.prefill(3)
    with torch.inference_mode(), pytest.raises(UnsupportedModel, match="cannot be cut between"):
        session.run(session.embed(session.ids([5, 6, 7]), step), 2, 4, step)


@pytest.mark.parametrize("family", WITHIN)
def test_wrong_keys_are_found_out_in_attention_within_a_layer(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = passes.Program.attend

    def nearsighted(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **{**named, "window": 3})

    monkeypatch.setattr(passes.Program, "attend", nearsighted)
    model = StagedModel(described(family), passes=FLAT)
    assert model.parts is None
    assert " is off by" in model.path.why


@pytest.mark.parametrize(
    ("family", "where", "name", "wrong"),
    [
        ("llama4_text", layers, "growth_of", lambda _: None),
        ("laguna", latent, "gating_of", lambda _: "sigmoid"),
        ("dbrx", layers, "clip_of", lambda _: 0.1),
        ("zamba2", layers.LayerWriter, "_adapt", lambda *_: None),
        ("jetmoe", layers.LayerWriter, "_turn", lambda *_: None),
        ("zaya", layers.LayerWriter, "_turn", lambda *_: None),
    ],
)
def test_what_a_program_leaves_out_or_takes_for_something_else_is_found_out(
    family: str, where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    model = StagedModel(described(family), passes=FLAT)
    assert model.parts is None
    assert " is off by" in model.path.why


def test_a_layer_that_is_given_other_attention_than_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = parts.FlatAttention.forward

    def moved(self: Any, *given: Any, **named: Any) -> Any:
        found, none = real(self, *given, **named)
        return found.roll(1, -1), none

    monkeypatch.setattr(parts.FlatAttention, "forward", moved)
    model = StagedModel(tiny("falcon_h1"), passes=FLAT)
    assert model.parts is None
    assert "layer 0 is off by" in model.path.why


def test_attention_alone_is_flat_beside_an_mlp_of_any_name() -> None:
    stock = tiny("granitemoehybrid", num_local_experts=0)
    model = made("granitemoehybrid", copy.deepcopy(stock))
    assert model.parts is not None and sorted(model.parts.halves) == [1, 3]
    with torch.no_grad():
        wanted = stock(torch.tensor([[*TEXT, *MORE]])).logits[:, -len(MORE) :]
    assert_near(rows(model)[0], wanted)


def test_heads_that_experts_do_not_make_are_refused() -> None:
    model = StagedModel(tiny("jetmoe", num_attention_heads=8), passes=FLAT)
    assert model.parts is None
    assert "its experts do not make the queries of 8 heads" in model.path.why


@torch.inference_mode()
def branches(model: StagedModel, parents: Sequence[int], ids: list[int]) -> Tensor:
    """Logits of a tree behind a text."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(TEXT)
    session.prefill()
    return session.logits(session.forward(session.ids(ids), session.tree(parents)))


@pytest.mark.parametrize(
    "family", [*("cohere2_moe", "dbrx", "gemma4_text", "gpt_oss", "jetmoe", "llama4_text")]
)
def test_a_tree_sees_what_a_branch_does_alone(family: str) -> None:
    model = made(family)
    found = branches(model, (-1, 0, 0, 1), [7, 8, 9, 10]), branches(model, (-1, 0, 1), [7, 8, 10])
    assert_near(found[0][:, -1], found[1][:, -1])


@pytest.mark.parametrize(
    ("family", "rest"),
    [("mixtral", "experts"), ("lfm2", "memory"), ("zamba", "memory")],
)
def test_the_header_says_what_is_flat_and_what_keeps_the_rest_from_it(
    family: str, rest: str
) -> None:
    path = made(family).path
    assert path.kernels.startswith(f"{IN_PARTS}, ")
    assert "the rest is eager: its layers" in path.why and rest in path.why
    assert kind_of_passes(path.kernels) == FLAT  # so a run is gone on with


@pytest.mark.parametrize(("family", "flat"), [("mixtral", False), ("lfm2", True)])
def test_in_half_precision_rounding_sends_no_token_to_other_experts(
    family: str, flat: bool
) -> None:
    stock = tiny(family).bfloat16()
    model, plain = (StagedModel(copy.deepcopy(stock), passes=how) for how in (FLAT, EAGER))
    assert (model.parts is not None) == flat
    assert flat or "choose between experts" in model.path.why
    same = [torch.equal(*pair) for pair in zip(rows(model), rows(plain), strict=True)]
    assert flat or all(same)


def test_whichever_is_faster_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for flat_s, kernels in ((1e-3, IN_PARTS), (3e-3, EAGER)):
        times = [PairedTime(n, flat_s, 2e-3) for n in choice.ROWS]
        monkeypatch.setattr(choice, "measure", lambda *_, times=times: times)
        model = StagedModel(tiny("mixtral"), passes=FASTER)
        assert model.path.kernels.startswith(kernels)
        assert (model.parts is None) == (kernels == EAGER)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_5_text", "falcon_h1", "zamba"])
def test_layers_are_timed_as_they_would_run(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[int]()
    real = choice.FlatParts.run

    def run(self: Any, index: int, *given: Any) -> Tensor | None:
        ran.append(index)
        return real(self, index, *given)

    monkeypatch.setattr(choice.FlatParts, "run", run)
    StagedModel(tiny(family), passes=FASTER)
    assert set(ran[:8]) == {1 if family in ("qwen3_5_text", "zamba") else 0}


def test_what_is_not_flat_of_a_layer_is_timed_as_it_would_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "PAYS_FROM", {torch.float32: 0})
    if not packing.can_pack(torch.ones(16, 16)):
        pytest.skip("nothing is packed here")
    ran, real = list[type](), choice.FlatParts.run

    def run(self: Any, index: int, *given: Any) -> Tensor | None:
        ran.append(type(self.around.layers[index].feed_forward.up_proj))
        return real(self, index, *given)

    monkeypatch.setattr(choice.FlatParts, "run", run)
    times = [PairedTime(n, 1e-3, 2e-3) for n in choice.ROWS]
    measured = choice.measure

    def measure(*given: Any) -> list[PairedTime]:
        measured(*given)
        return times

    monkeypatch.setattr(choice, "measure", measure)
    model = StagedModel(tiny("falcon_h1"), passes=FASTER)
    assert model.parts is not None
    held = model.parts.around.layers[0].get_submodule("feed_forward.up_proj")
    assert ran[0] is type(held) is packing.PackedLinear


def test_one_shape_for_all_passes_is_left_to_the_library() -> None:
    model = made("mixtral")
    assert model.parts is not None
    with torch.inference_mode():
        for rows_of_all, flat in ((6, False), (None, True)):
            session = Session(model, CAPACITY, fixed_rows=rows_of_all)
            session.reset(TEXT)
            session.prefill()
            step = session.steps.chain(len(TEXT), 1)
            hidden = session.embed(torch.full((1, step.n_query), 5), step)
            session.cache.begin(step, 0, 1)
            assert (model.parts.run(0, hidden, step, session.cache) is not None) == flat


def test_blocks_are_left_out_of_such_models_too() -> None:
    stock = tiny("mixtral")
    found = []
    for model in (made("mixtral", copy.deepcopy(stock)), StagedModel(stock)):
        skipped = SkippedModel(model, {1}, {2})
        assert skipped.parts is None
        session = Session(model, CAPACITY)
        session.reset(TEXT)
        with torch.inference_mode():
            session.prefill()
            found.append(skipped.over(session).advance(session.ids([5])))
    assert_near(*found)


def test_a_wrong_product_is_refused_and_all_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbiased(weight: Tensor, bias: Tensor | None = None) -> FlatLinear:
        return pack(weight, None)

    monkeypatch.setattr(products, "pack", unbiased)
    model = StagedModel(tiny("gpt_oss", attention_bias=True), passes=FLAT)
    assert model.parts is None and model.flat is None
    assert model.path.kernels == EAGER


def test_wrong_keys_are_found_out_in_a_layer_of_which_half_is_flat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = passes.Program.attend

    def nearsighted(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **{**named, "window": 3})

    monkeypatch.setattr(passes.Program, "attend", nearsighted)
    model = StagedModel(tiny("mixtral"), passes=FLAT)
    assert model.parts is None
    assert "layer 0 is off by" in model.path.why


@pytest.mark.parametrize("family", ["mixtral", "falcon_h1", "zamba2"])
def test_several_sequences_share_such_passes(family: str) -> None:
    model = made(family)
    place = MeetingPlace()
    twin, found = at_meeting(model, place), list[Tensor]()

    def work() -> None:
        with torch.inference_mode():
            session = Session(twin, CAPACITY)
            session.reset(TEXT)
            session.prefill()
            found.append(session.advance(session.ids([5])))

    for _ in range(2):
        place.invite(work)
    while not place.is_over:
        place.advance()
    assert not place.unjoined
    assert_near(*found)
    session = Session(model, CAPACITY)
    session.reset(TEXT)
    with torch.inference_mode():
        session.prefill()
        assert_near(found[0], session.advance(session.ids([5])))


def test_of_layers_that_are_alike_one_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[tuple[int, bool]]()
    real = choice.Trial.compare_half

    def compare_half(self: Any, index: int, flat: Any, *, rest: bool) -> None:
        compared.append((index, rest))
        real(self, index, flat, rest=rest)

    monkeypatch.setattr(choice.Trial, "compare_half", compare_half)
    made("mixtral")
    assert compared == [(0, True)]
    compared.clear()
    made("glm4_moe")
    assert compared == [(1, True), (2, False), (3, False)]
