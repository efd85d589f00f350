"""Words that are looked up in the head's weight, against the rows of a plain embedding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ppdbench.bench.baseline import weight_bytes_read
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.flat import words as flat_words
from ppdbench.engine.flat.weights import pack
from ppdbench.engine.flat.words import FlatWords
from ppdbench.engine.loading import Loaded, ModelSpec, load, load_stock, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel, wider
from ppdbench.machine.clock import Clock
from ppdbench.machine.pages import large_pages
from tests.families import greedy_truth

TIED, UNTIED = (
    f"synthetic:layers=2,hidden=64,heads=4,vocab=512,{tie}" for tie in ("tie=1", "tie=0")
)
PROMPT = [3, 17, 5, 300, 2]


def drawn(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0)).to(dtype)


def loaded(name: str, dtype: str, passes: str = "flat") -> Loaded:
    found = load(ModelSpec(name=name, dtype=dtype, device="cpu"), passes=passes)
    if passes == "flat" and not large_pages._spans:
        pytest.skip("no large pages here")
    return found


def outputs(model: StagedModel) -> list[int]:
    request = Request(PROMPT, Limits(24), Clock(model.device))
    return list(autoregressive(Session(model, 40), request).output_ids)


@pytest.mark.parametrize("shape", [(45, 37), (64, 96)], ids=str)
def test_words_are_the_rows_of_the_weight(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = drawn(*shape, dtype=dtype)
    words = FlatWords(pack(weight))
    assert torch.equal(words(torch.arange(shape[0])), weight)
    assert torch.equal(words.rows(), weight)
    tokens = torch.tensor([[0, 44, 31], [32, 7, 7]])
    assert torch.equal(words(tokens), weight[tokens])
    assert torch.equal(words(tokens.int().t()), weight[tokens.t()])
    assert words(tokens[:, :0]).shape == (2, 0, shape[1])
    for outside in (-1, shape[0]):
        with pytest.raises(IndexError, match="no word"):
            words(torch.tensor([outside]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_holds_the_words_that_its_head_shares_once(dtype: str) -> None:
    model = loaded(TIED, dtype).staged
    assert isinstance(model.adapter.embedding, FlatWords)
    assert model.model.get_input_embeddings() is model.adapter.embedding
    beside = sum(b.nbytes for b in model.model.buffers())
    assert model.weight_bytes() == model.parameters * model.dtype.itemsize + beside
    assert weight_bytes_read(model) == model.weight_bytes()
    assert (model.adapter.dtype, model.adapter.device) == (model.dtype, torch.device("cpu"))
    assert model.flat is not None
    assert model.flat.looks_up
    plain = loaded(UNTIED, dtype).staged
    assert type(plain.adapter.embedding) is nn.Embedding


def test_outputs_are_those_of_stock_greedy_decoding() -> None:
    spec = ModelSpec(name=TIED, dtype="float32", device="cpu")
    stock, tokenizer = load_stock(spec)
    truth = greedy_truth(stock, PROMPT, 24)
    model = take_over(spec, stock, tokenizer, passes="flat").staged
    assert outputs(model) == truth
    model.flat = None  # eager passes look words up in the same weight
    assert outputs(model) == truth


def test_wider_passes_read_the_same_words() -> None:
    model = loaded(TIED, "bfloat16").staged
    ids = torch.tensor([PROMPT])
    wide = wider(model).adapter.embedding(ids)
    assert wide.dtype == torch.float32
    assert torch.equal(wide, model.adapter.embedding(ids).float())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_words_that_come_out_otherwise_leave_the_model_as_it_was(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = flat_words.FlatWords.forward

    def wrong(self: FlatWords, tokens: Tensor) -> Tensor:
        found = honest(self, tokens)
        found[..., -1] += 1
        return found

    expected = outputs(loaded(TIED, dtype, "eager").staged)
    rows = load_stock(ModelSpec(name=TIED, dtype=dtype, device="cpu"))[0].lm_head.weight
    monkeypatch.setattr(flat_words.FlatWords, "forward", wrong)
    model = loaded(TIED, dtype).staged
    assert "words that are looked up in the head are others" in model.path.why
    embedding = model.adapter.embedding
    assert type(embedding) is nn.Embedding
    assert model.model.get_input_embeddings() is embedding
    assert torch.equal(embedding.weight, rows)
    assert outputs(model) == expected


def test_an_embedding_that_does_more_than_look_up_stays() -> None:
    spec = ModelSpec(name=TIED, dtype="float32", device="cpu")
    stock, tokenizer = load_stock(spec)
    stock.get_input_embeddings().register_forward_hook(lambda *given: 2 * given[-1])
    rows = stock.lm_head.weight.clone()
    model = take_over(spec, stock, tokenizer, passes="flat").staged
    assert model.flat is not None
    assert torch.equal(model.adapter.embedding(torch.arange(512)), 2 * rows)
