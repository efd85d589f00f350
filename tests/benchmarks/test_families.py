"""The table of families is that of the installed transformers, and what it says holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.families import PAGE, PARTS, UNTRIED, differs, model_types, page, tiny, tried
from ppdbench.engine.known import TABLE, known, of_text_and_more
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel

ROOT = Path(__file__).parents[2]
RUNNING = sorted(row.family for row in known().values() if row.runs)
# Text parts are of families that are tried anyway, and a few of them in tests of their own.
TRIED = [pytest.param(f, marks=[pytest.mark.slow] if f in PARTS else []) for f in RUNNING]
# Here over fewer tokens than `make families` decodes, yet past every window.
TOKENS = 6


def test_every_family_of_transformers_is_in_the_table_with_a_reason_if_it_does_not_run() -> None:
    assert sorted(known()) == model_types()
    assert all(row.runs or row.why for row in known().values())
    assert len(RUNNING) >= 60


LEFT = sorted(of_text_and_more().keys() - MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - UNTRIED)


@pytest.mark.parametrize("family", [name for name in LEFT if name not in PARTS])
def test_models_for_text_and_more_say_what_stands_between_them_and_their_text(family: str) -> None:
    row = known()[family]
    assert (row.kind, row.runs) == ("text and more", False)
    assert tried(family, TOKENS) == row


def test_the_page_is_made_of_the_table() -> None:
    assert (ROOT / PAGE).read_text("utf-8") == page(known().values())
    assert [row["family"] for row in json.loads(TABLE.read_text("utf-8"))] == model_types()


@pytest.mark.parametrize("family", TRIED)
def test_families_that_run_give_the_states_logits_and_tokens_of_transformers(family: str) -> None:
    assert tried(family, TOKENS) == known()[family]


def test_falcon_counts_distances_where_it_has_no_rotary_tables() -> None:
    settings = {"multi_query": False, "parallel_attn": False, "num_attention_heads": 6}
    model = tiny("falcon", alibi=True, new_decoder_architecture=False, hidden_size=48, **settings)
    assert model.config.alibi
    assert differs(model, TOKENS) is None


@pytest.mark.parametrize("family", ["granite_swa", "granitemoe_swa"])
@pytest.mark.parametrize("bases", [[10000, 0, 500.0, 10000.0], [0] * 4, [500.0] * 4])
def test_layers_turn_heads_at_their_own_speed_or_not_at_all(
    family: str, bases: list[float]
) -> None:
    assert differs(tiny(family, layer_rope_theta=bases), TOKENS) is None


def test_queries_of_llama_4_grow_by_where_they_stand() -> None:
    model = tiny("llama4_text", no_rope_layers=[1, 0, 1, 0], floor_scale=4, attn_scale=0.5)
    assert differs(model, TOKENS) is None


@pytest.mark.parametrize("family", ["bloom", "mpt", "gptj", "falcon", "cohere", "deepseek_v3"])
def test_single_blocks_can_be_left_out_of_layers_that_add_them_in_their_own_way(
    family: str,
) -> None:
    model = StagedModel(tiny(family))
    whole, some = Session(model, 32), Session(SkippedModel(model, {1, 2}, {1, 3}), 32)
    for session in (whole, some):
        session.reset([5, 17, 33])
    full, less = whole.prefill(), some.prefill()
    assert less.isfinite().all()
    assert (full - less).abs().max() > 1e-3
