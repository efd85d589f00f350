"""The stock model as a judge: its own passes, a wider type, and nothing of ours."""

from __future__ import annotations

import pytest
import torch

from ppdbench.engine.truth import StockTruth, distance, widened
from tests.families import FAMILIES, stock_model
from tests.helpers import WINDOWED, tokens

IDS = tokens(21, 5)


def plain(name: str, dtype: torch.dtype) -> torch.Tensor:
    """What the whole model gives when all of it is converted."""
    with torch.inference_mode():
        return stock_model(name).to(dtype)(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_truth_of_bfloat16_weights_is_what_float32_makes_of_them(name: str) -> None:
    stock = stock_model(name).to(torch.bfloat16)
    with torch.inference_mode():
        wide = stock_model(name).to(torch.bfloat16).float()(torch.tensor([IDS])).logits[0]
    measured = StockTruth(stock).measure(IDS, 3)
    assert measured.logits.dtype == torch.float32
    assert float((measured.logits - wide[3:]).abs().max()) < 1e-3
    assert 0 < float(measured.noise.max()) < 0.5


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_as_they_were_after_a_wide_pass(name: str) -> None:
    stock = stock_model(name).to(torch.bfloat16)
    before = {key: tensor.clone() for key, tensor in stock.state_dict().items()}
    places = {key: p.data_ptr() for key, p in stock.named_parameters()}
    StockTruth(stock).measure(IDS, 0)
    after = stock.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert places == {key: p.data_ptr() for key, p in stock.named_parameters()}


@pytest.mark.parametrize("name", ["llama", *WINDOWED])
def test_noise_is_that_of_passes_of_one_row_and_of_many(name: str) -> None:
    """Windows included: cached passes see as far as the pass over everything."""
    truth = StockTruth(stock_model(name))
    measured = truth.measure(IDS, 0)
    assert measured.logits.dtype == torch.float64
    assert 0 < float(measured.noise.max()) < 1e-4
    assert float((measured.logits - plain(name, torch.float32)).abs().max()) < 1e-4


def test_a_cut_model_gives_what_its_first_layers_lead_to() -> None:
    stock = stock_model("llama")
    cut = stock_model("llama")
    cut.model.layers = cut.model.layers[:2]
    cut.config.num_hidden_layers = 2
    found = StockTruth(stock).measure(IDS, 0, depth=2).logits
    with torch.inference_mode():
        wanted = cut(torch.tensor([IDS])).logits[0]
    assert float((found - wanted).abs().max()) < 1e-4
    assert stock.config.num_hidden_layers == 4


def test_distance_leaves_out_what_all_logits_share() -> None:
    logits = torch.randn(3, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float(distance(logits + 7.0, logits).max()) < 1e-12
    moved = logits.clone()
    moved[1, logits[1].argmax()] += 8.0
    off = distance(moved, logits)
    # One of 64 contenders moved by 8, from their mean.
    assert float(off[1]) == pytest.approx(8 * (1 / 64 * (1 - 1 / 64)) ** 0.5)
    assert float(off[0]) == float(off[2]) == 0


def test_a_pass_that_fails_leaves_the_weights_as_they_were() -> None:
    stock = stock_model("llama").to(torch.bfloat16)
    with pytest.raises(IndexError), widened(stock, torch.float32), torch.inference_mode():
        stock(torch.tensor([[1000]]))
    assert {p.dtype for p in stock.parameters()} == {torch.bfloat16}
