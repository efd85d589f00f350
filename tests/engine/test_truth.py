"""The stock model as a judge: its own passes, a wider type, and nothing of ours."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine import truth
from ppdbench.engine.loading import ModelSpec
from ppdbench.engine.nearness import distance
from ppdbench.engine.truth import StockTruth, widened
from ppdbench.errors import ConfigError, NumericalError
from tests.families import FAMILIES, stock_model
from tests.helpers import WINDOWED, staged, tokens

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


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cut_model_gives_what_its_first_layers_lead_to(name: str) -> None:
    """By what its layers hand on, read out with its own norm and head."""
    stock = stock_model(name)
    body, head = stock.base_model, stock.get_output_embeddings()
    seen: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    found = StockTruth(stock).measure(IDS, 0, depth=2).logits
    hook.remove()
    with torch.inference_mode():
        states = body(torch.tensor([IDS]), output_hidden_states=True).hidden_states
        whole = stock(torch.tensor([IDS])).logits[0]
    ours = staged(name)
    with torch.inference_mode():
        cut = ours.adapter.readout(ours.adapter.norm(states[2]))[0]
    assert seen[0].dtype == torch.float64
    assert float((found - cut).abs().max()) < 1e-4
    assert float((found - whole).abs().max()) > 1e-2
    with torch.inference_mode():
        assert torch.equal(stock(torch.tensor([IDS])).logits[0], whole)


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


def test_experts_that_read_a_part_and_call_it_for_each_find_it_wide_until_the_end() -> None:
    stock = tiny("dbrx")
    before = {key: p.data_ptr() for key, p in stock.named_parameters()}
    found = StockTruth(stock).measure(IDS, 3)
    with torch.inference_mode():
        wide = copy.deepcopy(stock).double()(torch.tensor([IDS]), use_cache=False).logits[0, 3:]
    assert float((found.logits - wide).abs().max()) < 1e-5
    assert {key: p.data_ptr() for key, p in stock.named_parameters()} == before
    assert {p.dtype for p in stock.parameters()} == {torch.float32}


def test_one_module_at_a_time_is_wide_and_what_it_reads_of_others() -> None:
    stock = tiny("dbrx")
    most: set[int] = set()

    def see(*_: object) -> None:
        wide = {name for name, p in stock.named_parameters() if p.dtype == torch.float64}
        most.add(len({name.rpartition(".")[0] for name in wide}))

    # Modules that hold nothing themselves are called with what was widened around them.
    hooks = [m.register_forward_pre_hook(see) for m in stock.modules()]
    with widened(stock, torch.float64), torch.inference_mode():
        stock(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    assert most == {0, 1}


def test_without_room_for_a_second_copy_weights_are_read_from_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    real = truth.load_stock

    def refusing(spec: ModelSpec) -> Any:
        asked.append(spec.device_map)
        if spec.device_map is None:
            raise ConfigError("no room")
        return real(dataclasses.replace(spec, device_map=None))

    monkeypatch.setattr(truth, "load_stock", refusing)
    found = StockTruth.load(ModelSpec(name="reference", offline=True, device="cpu"))
    assert asked == [None, "auto"]
    assert found.measure(IDS, 0).logits.shape[0] == len(IDS)
    with pytest.raises(ConfigError, match="the stock model is to judge it: no room"):
        StockTruth.load(ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300"))


def test_a_model_whose_weights_are_away_judges_in_its_own_type() -> None:
    stock = stock_model("llama").to(torch.bfloat16)
    assert StockTruth(stock).wider == torch.float32
    stock.model.layers[1].mlp.up_proj.to("meta")
    assert StockTruth(stock).wider == torch.bfloat16


@pytest.mark.parametrize("family", ["lfm2", "bamba", "mamba", "jamba", "mixtral"])
def test_passes_of_models_that_remember_and_choose_lie_near_those_in_a_wider_type(
    family: str,
) -> None:
    truth, text = StockTruth(tiny(family)), tokens(14)
    found = truth.measure(text, 8)
    with torch.inference_mode():
        whole = truth.model(torch.tensor([text]), use_cache=False).logits[0, 8:]
    assert (truth.wider, truth.model.dtype) == (torch.float64, torch.float32)
    assert float((found.logits - whole).abs().max()) < 1e-4
    assert 0 < float(found.noise.max()) < 1e-4


def test_a_stock_model_that_gives_no_numbers_is_no_judge() -> None:
    stock = stock_model("llama")
    with torch.no_grad():
        stock.model.norm.weight[0] = float("nan")
    with pytest.raises(NumericalError, match="the stock model's own logits are no numbers"):
        StockTruth(stock).measure(IDS, 3)
