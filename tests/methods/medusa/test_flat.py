"""Flat Medusa heads: what a hand-written float64 formula gives, or not used at all."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from benchmarks.families import tiny
from ppdbench.decoding.limits import Limits
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.ops import Program
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.staged import StagedModel
from ppdbench.methods.medusa.choice import lay_out_heads
from ppdbench.methods.medusa.network import MedusaHeads
from tests.decoding.matrix import Case, assert_exact
from tests.engine.flat import made
from tests.engine.flat.conftest import kernels as kernels
from tests.helpers import VOCAB
from tests.methods.medusa.test_strategy import PROMPTS, random_heads

pytestmark = pytest.mark.usefixtures("kernels")

HEADS, WORDS, RANK = 3, 40, 5
# Blocks, and what heads read words through: a matrix of each, or the model's rows and a change.
KINDS = [
    *itertools.product((0, 1, 2), ("matrix", "change")),
    *itertools.product((1,), ("words", "words and change", "head")),
]


def heads_of(model: StagedModel, blocks: int, reading: str) -> MedusaHeads:
    """Random heads, large enough to have opinions."""
    drawn, width = torch.Generator().manual_seed(0), model.adapter.head_width

    def some(*size: int) -> Tensor:
        return (0.2 * torch.randn(*size, generator=drawn)).to(model.dtype)

    n_words = WORDS if "words" in reading else VOCAB
    readout: tuple[Tensor, ...] = ()
    if reading == "matrix":
        readout = (some(HEADS, VOCAB, width),)
    elif "change" in reading:
        readout = some(HEADS, RANK, width), some(HEADS, n_words, RANK)
    words = (torch.arange(WORDS), some(WORDS, width)) if "words" in reading else None
    loaded = Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, "")
    made = tuple((some(HEADS, width, width), some(HEADS, 1, width)) for _ in range(blocks))
    whole = reading == "matrix"
    return MedusaHeads(loaded, made, readout, HEADS, model.n_layers, whole, words)


def formula(heads: MedusaHeads, hidden: Tensor) -> Tensor:
    """Logits [heads, n, words] in float64, head by head."""
    adapter = heads.loaded.staged.adapter
    normed, found = adapter.norm(hidden).double(), []
    ones = torch.eye(adapter.head_width, dtype=hidden.dtype)
    shared = adapter.head(ones).T if heads.words is None else heads.words[1]
    for h in range(heads.count):
        x = normed
        for weight, bias in heads.blocks:
            x = x + silu(x @ weight[h].double().T + bias[h].double())
        if len(heads.readout) == 1:
            found.append(x @ heads.readout[0][h].double().T)
            continue
        logits = x @ shared.double().T
        if heads.readout:
            down, up = (matrix[h].double() for matrix in heads.readout)
            logits = logits + x @ down.T @ up.T
        found.append(logits)
    return torch.stack(found)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("blocks", "reading"), KINDS)
def test_flat_heads_give_what_the_formula_does(
    blocks: int, reading: str, dtype: torch.dtype
) -> None:
    model = made.made("llama", dtype)
    plain = heads_of(model, blocks, reading)
    flat = lay_out_heads(plain)
    assert flat.flat is not None
    assert not flat.blocks
    assert not flat.readout
    hidden = torch.randn(70, model.hidden_size, generator=torch.Generator().manual_seed(1))
    for rows, count in ((1, HEADS), (70, HEADS), (3, 2)):
        some = hidden[:rows].to(dtype)
        true = formula(plain.first(count), some)
        allowed = (1e-5 if dtype == torch.float32 else 2e-2) * float(true.abs().max())
        found = flat.first(count).logits(some).double()
        assert found.shape == true.shape
        assert float((found - true).abs().max()) <= allowed
        plain_off = float((plain.first(count).logits(some).double() - true).abs().max())
        assert plain_off <= allowed  # both mean the same


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("gpt2", {}),  # a mean and a bias
        ("gemma3_text", {}),  # weights and one
        ("minicpm3", {}),  # divided behind the norm
        ("opt", {"word_embed_proj_dim": 24}),  # a projection
    ],
)
def test_what_stands_before_the_head_is_part_of_flat_heads(
    family: str, overrides: dict[str, int]
) -> None:
    model = StagedModel(tiny(family, **overrides), passes=FLAT)
    plain = heads_of(model, 1, "words and change")
    flat = lay_out_heads(plain)
    assert flat.flat is not None
    hidden = torch.randn(5, model.hidden_size, generator=torch.Generator().manual_seed(1))
    true = formula(plain, hidden)
    assert float((flat.logits(hidden).double() - true).abs().max()) <= 1e-5 * float(
        true.abs().max()
    )


@torch.inference_mode()
def test_states_of_a_wider_type_are_read_too() -> None:
    model = made.made("llama", torch.bfloat16)
    flat = lay_out_heads(heads_of(model, 1, "matrix"))
    hidden = torch.randn(3, model.hidden_size, dtype=torch.bfloat16)
    assert torch.equal(flat.logits(hidden.float()), flat.logits(hidden))


@torch.inference_mode()
@pytest.mark.parametrize("wrong", ["act", "add"])
def test_wrong_programs_are_not_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made.made("llama")
    plain = heads_of(model, 1, "words and change")
    monkeypatch.setattr(Program, wrong, lambda *_, **__: None)
    assert lay_out_heads(plain) is plain


def test_eager_models_keep_plain_heads() -> None:
    model = StagedModel(made.stock_model("llama"))
    plain = heads_of(model, 1, "matrix")
    assert lay_out_heads(plain) is plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drafts_of_flat_heads_are_verified_to_the_same_outputs(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = made.made("llama", dtype)
    decoder = random_heads(model, tmp_path)
    assert decoder.heads.flat is not None
    assert_exact(decoder, Case("own", PROMPTS[0], Limits(24)), model)
