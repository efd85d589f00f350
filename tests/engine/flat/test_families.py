"""Dense families in flat passes: stock logits, and each row's bits those of it alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.flat.choice import FLAT, IN_PARTS
from ppdbench.engine.known import known
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.engine.tiny_models import assert_as_near_in_half
from tests.helpers import CAPACITY, assert_near, tokens

TEXT, MORE = tokens(11), [7, 8, 9, 10, 11]
PARENTS = (-1, 0, 0, 1)
ALIBI = {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True}
# Of the largest Gemma 4: no layer shares rows or has an input of its own.
LARGE_GEMMA = {
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 3.0,
}
CLIPPED = {"clip_qkv": 0.5}
# Settings that bring out what a family does at times.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "apertus": [{}],
    "cohere": [{"use_qk_norm": True}],
    "cohere2": [{}],
    "diffllama": [{}, {"num_key_value_heads": 4, "attention_bias": True}],
    "ernie4_5": [{}],
    "exaone4": [{"sliding_window_pattern": 2}],
    "gemma3n_text": [
        {},
        {"num_kv_shared_layers": 0, "altup_correct_scale": False},
        {"altup_active_idx": 1, "altup_num_inputs": 3, "activation_sparsity_pattern": [0.0] * 4},
    ],
    "gemma4_text": [
        {},
        {"attention_k_eq_v": True, "use_double_wide_mlp": False},
        {"num_kv_shared_layers": 0},
        {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        {**LARGE_GEMMA, "sliding_window": 5},
    ],
    "gemma4_unified_text": [{}, {"num_kv_shared_layers": 0}],
    "glm": [{}],
    "glm4": [{}],
    "gpt_bigcode": [{}, {"multi_query": False, "num_key_value_heads": 4}],
    "granite": [{"residual_multiplier": 0.4, "logits_scaling": 3.0, "attention_multiplier": 0.2}],
    "helium": [{}],
    "hunyuan_v1_dense": [{}],
    "hyperclovax": [{"residual_multiplier": 0.4, "use_post_norm": True, "logits_scaling": 0.3}],
    "bitnet": [{}],
    "bloom": [{}],
    "codegen": [{}],
    "falcon": [
        {"multi_query": True},
        ALIBI,
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ],
    "gpt_neo": [{}],
    "gpt_neox_japanese": [{}],
    "gptj": [{}],
    "granite_swa": [{}, {"layer_rope_theta": None}],
    "minicpm3": [{}],
    "ministral3": [{}],
    "modernbert-decoder": [
        {},
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
    ],
    "mpt": [{}, {"attn_config": CLIPPED}],
    "nanochat": [{}],
    "nemotron": [{}],
    "olmo": [{}, CLIPPED],
    "persimmon": [{}],
    "phi": [{"qk_layernorm": True}],
    "smollm3": [{"no_rope_layer_interval": 2}],
    "stablelm": [
        {"use_parallel_residual": True, "qk_layernorm": True},
        {"use_qkv_bias": True},
    ],
    "vaultgemma": [{}],
    "xglm": [{}],
    "youtu": [{}, {"rope_interleave": False, "attention_bias": True}],
}
CASES = [(name, settings) for name, several in SETTINGS.items() for settings in several]


def stirred(model: Any) -> Any:
    """A model whose queries grow within the text of a test, if they do at all.

    And whose layers scale the stream each by a factor of its own, if they do.
    """
    for number, buffer in enumerate(b for n, b in model.named_buffers() if "layer_scalar" in n):
        buffer.fill_(0.5 + 0.25 * number)
    rope = getattr(model.config, "rope_parameters", None) or {}
    if "llama_4_scaling_beta" in rope:
        rope["original_max_position_embeddings"] = 4
    return model


@torch.inference_mode()
def rows(model: StagedModel) -> list[Tensor]:
    """Logits of a chain at once, of its rows one by one, and of a tree behind the text."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(TEXT)
    session.prefill()
    chain = session.logits(session.forward(session.ids(MORE)))
    session.cache.truncate(len(TEXT))
    single = torch.cat([session.advance(session.ids([token])) for token in MORE], dim=1)
    session.cache.truncate(len(TEXT))
    step = session.tree(PARENTS)
    return [chain, single, session.logits(session.forward(session.ids(MORE[:4]), step))]


@pytest.mark.parametrize(("family", "settings"), CASES)
def test_logits_are_those_of_stock_and_no_row_depends_on_the_rows_beside_it(
    family: str, settings: dict[str, Any]
) -> None:
    stock = stirred(tiny(family, **settings))
    model = StagedModel(copy.deepcopy(stock), passes=FLAT)
    assert model.flat is not None, model.path.why
    chain, single, tree = rows(model)
    assert torch.equal(chain, single)
    assert torch.equal(tree[:, :2], chain[:, :2])
    with torch.no_grad():
        wanted = stock(torch.tensor([[*TEXT, *MORE]])).logits
        branch = stock(torch.tensor([[*TEXT, MORE[0], MORE[1], MORE[3]]])).logits
    assert_near(chain, wanted[:, -len(MORE) :])
    assert_near(tree[:, 3:], branch[:, -1:])


ATTENDING = {"dense": FLAT, "experts": IN_PARTS, "hybrid": IN_PARTS}


@pytest.mark.parametrize(
    ("family", "kind"),
    [(row.family, row.kind) for row in known().values() if row.runs and row.kind in ATTENDING],
)
def test_every_family_that_attends_does_so_flat(family: str, kind: str) -> None:
    model = StagedModel(tiny(family), passes=FLAT)
    assert model.path.kernels.startswith(f"{ATTENDING[kind]}, "), model.path.why


ONE_BASE: dict[str, Any] = {"layer_rope_theta": None}
FAR = [
    *(("bloom", {}), ("codegen", {}), ("diffllama", {})),
    *(("falcon", ALIBI), ("granite_swa", ONE_BASE)),
    ("gemma3n_text", {}),
    *(("gemma4_text", {}), ("gemma4_text", LARGE_GEMMA), ("gemma4_unified_text", {})),
    *(("minicpm3", {}), ("modernbert-decoder", {}), ("mpt", {}), ("youtu", {})),
]
HALF = [
    *(
        "bloom",
        "cohere",
        "diffllama",
        "falcon",
        "gemma3n_text",
        "gemma4_text",
        "gemma4_unified_text",
    ),
    *("glm4", "granite", "minicpm3", "ministral3", "modernbert-decoder", "youtu"),
]


@pytest.mark.parametrize(("family", "settings"), FAR)
def test_far_into_a_text_tokens_are_those_of_generate(
    family: str, settings: dict[str, Any]
) -> None:
    stock, text, n = stirred(tiny(family, **settings)), tokens(100), 30
    model = StagedModel(copy.deepcopy(stock), passes=FLAT)
    assert model.flat is not None, model.path.why
    session = Session(model, len(text) + n)
    session.reset(text)
    with torch.inference_mode():
        found = [int(session.prefill()[0, -1].argmax())]
        while len(found) < n:
            found.append(int(session.advance(session.ids(found[-1:]))[0, -1].argmax()))
        ids = torch.tensor([text])
        wanted = stock.generate(ids, max_new_tokens=n, do_sample=False, eos_token_id=None)
    assert found == wanted[0, len(text) :].tolist()


@pytest.mark.parametrize(("family", "settings"), FAR)
def test_in_half_precision_passes_are_as_near_to_what_is_true_as_stock(
    family: str, settings: dict[str, Any]
) -> None:
    stock, text = stirred(tiny(family, **settings)).bfloat16(), tokens(100)
    model = StagedModel(copy.deepcopy(stock), passes=FLAT)
    assert model.flat is not None, model.path.why
    assert_as_near_in_half(stock, model, text)


@pytest.mark.parametrize("family", HALF)
def test_in_half_precision_rows_do_not_depend_on_the_rows_beside_them_either(family: str) -> None:
    model = StagedModel(stirred(tiny(family)).bfloat16(), passes=FLAT)
    assert model.flat is not None, model.path.why
    chain, single, tree = rows(model)
    assert torch.equal(chain, single)
    assert torch.equal(tree[:, :2], chain[:, :2])
