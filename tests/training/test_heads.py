"""Heads of early layers: what is trained of them, and what probing makes of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.cli.main import run
from ppdbench.engine.heads import load_heads
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.synthetic import tokenizer
from ppdbench.training.heads import HeadsObjective
from tests.families import stock_model
from tests.training.conftest import HELD_OUT
from tests.training.made import SMALL, blocks, learn, quality, write_task


@pytest.mark.parametrize(("rank", "of_state"), [(None, False), (3, False), (3, True)])
def test_heads_start_as_the_models_own(rank: int | None, of_state: bool) -> None:
    stock = stock_model("llama")
    objective = HeadsObjective(stock, [1, 3], 16, rank=rank, of_state=of_state)
    own = stock.get_output_embeddings()
    normed = torch.randn(2, 5, 32)
    for reader in objective.readers().values():
        torch.testing.assert_close(reader(normed), own(normed))


@torch.no_grad()
@pytest.mark.parametrize("of_state", [False, True])
def test_a_head_with_a_bias_is_trained_as_it_is_read(of_state: bool, tmp_path: Path) -> None:
    stock = tiny("phi")
    assert float(stock.lm_head.bias.abs().max()) > 0.1
    objective = HeadsObjective(stock, [1, 3], 16, rank=3, of_state=of_state)
    for name, weight in objective.named_parameters():
        weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    objective.save(tmp_path)
    loaded = take_over(ModelSpec(name="tiny"), stock, tokenizer(300, 96))
    heads, _ = load_heads(tmp_path, loaded)
    normed = torch.randn(5, 32)
    for layer, reader in objective.readers().items():
        read = heads[layer].logits(loaded.staged.adapter, normed)
        torch.testing.assert_close(reader(normed), read)


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_only_heads_are_trained(loss: str) -> None:
    stock = stock_model("llama")
    before = copy.deepcopy(stock.state_dict())
    objective = HeadsObjective(stock, [1, 2], 16, loss=loss)
    assert {name.split(".")[1] for name, _ in objective.named_parameters()} == {"1", "2"}
    losses = learn(objective, blocks(), 30)
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(before[name], value) for name, value in stock.state_dict().items())


def test_the_kl_loss_of_the_final_layers_own_distribution_is_zero() -> None:
    objective = HeadsObjective(stock_model("llama"), [3], 16, loss="kl")
    logits = torch.randn(2, 5, 96)
    assert float(objective._one(logits, logits.clone(), torch.zeros(2, 5))) == pytest.approx(0)


def test_a_change_of_the_state_is_no_matrix(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "./model", "--text", "text.txt", "--out", "heads", "--steps", "1", *SMALL]
    assert run(["train", "heads", *words, "--of-state", "--whole"]) == 2
    assert "--of-state is a low-rank change, --whole a matrix" in capsys.readouterr().err
    assert run(["train", "heads", *words, "--rank", "8", "--whole"]) == 2
    assert "--rank is of a low-rank change, --whole a matrix" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--of-state", "--rank", "16", "--learning-rate", "1e-2"]])
def test_trained_heads_are_read_by_probe_and_raise_match_rates_on_their_text(
    more: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "./model", "--text", "text.txt", "--out", "heads", "--steps", "60", *SMALL]
    assert run(["train", "heads", *words, "--loss", "kl", *more, *HELD_OUT]) == 0
    told = capsys.readouterr()
    assert "perplexity" in told.out
    assert "text.txt is trained on and measured on" in told.err
    words = ["--limit", "2", "--max-new-tokens", "8", *write_task(home, 8), "--format", "json"]
    probe = ["probe", "--model", "./model", "--head", "heads", *words]
    assert run(probe) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["head"] for row in rows} == {"N", "Y"}
    loss = {(q["head"], q["layer"]): q["loss"] for q in quality(home / "heads")}
    assert all(loss["Y", n] < loss["N", n] for n in (1, 2, 3))
