"""Training Medusa heads: what they aim at, what stays, and what comes of a run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.families import tiny
from ppdbench.cli.main import run
from ppdbench.errors import ConfigError
from ppdbench.methods.medusa.plan import MedusaPlan
from ppdbench.methods.medusa.train import MedusaObjective
from tests.families import FAMILIES, stock_model
from tests.helpers import tokens
from tests.training.conftest import HELD_OUT
from tests.training.made import (
    assert_goes_on,
    assert_refused,
    blocks,
    learn,
    quality,
    training,
    write_task,
)

TRAIN = training("medusa")


def objective(family: str = "llama", **plan: Any) -> MedusaObjective:
    return MedusaObjective(stock_model(family), MedusaPlan(**{"heads": 3, **plan}), 16)


# What heads aim at


@torch.no_grad()
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("rank", [None, 0, 4])
def test_every_head_starts_as_the_models_guess_of_the_next_token(
    family: str, rank: int | None
) -> None:
    stock = stock_model(family)
    text = torch.tensor([tokens(16, 1)])
    truth = copy.deepcopy(stock)(text).logits
    heads = MedusaObjective(stock, MedusaPlan(heads=2, rank=rank), 16)
    for distance, (ours, _) in enumerate(heads._guesses(text), start=1):
        torch.testing.assert_close(ours, truth[:, :-distance], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("rank", [0, 4])
def test_heads_of_a_model_with_a_bias_on_its_head_start_with_it(rank: int) -> None:
    stock = tiny("phi")
    text = torch.tensor([tokens(16, 1)])
    truth = copy.deepcopy(stock)(text).logits
    heads = MedusaObjective(stock, MedusaPlan(heads=1, rank=rank), 16)
    ((ours, _),) = heads._guesses(text)
    torch.testing.assert_close(ours, truth[:, :-1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_head_aims_at_what_the_model_says_so_many_tokens_further_on() -> None:
    stock = stock_model("llama")
    text = torch.tensor([tokens(16, 1)])
    truth = copy.deepcopy(stock)(text).logits
    heads = MedusaObjective(stock, MedusaPlan(heads=3), 16)
    for distance, (_, own) in enumerate(heads._guesses(text), start=1):
        torch.testing.assert_close(own, truth[:, distance:], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("after", [1, 3, 4])
def test_heads_may_read_an_earlier_state_and_aim_at_the_same(after: int) -> None:
    stock = stock_model("llama")
    text = torch.tensor([tokens(16, 1)])
    made = copy.deepcopy(stock)(text, output_hidden_states=True)
    early = stock.lm_head(stock.model.norm(made.hidden_states[after])) if after < 4 else made.logits
    heads = MedusaObjective(stock, MedusaPlan(heads=2, after=after), 16)
    for distance, (ours, own) in enumerate(heads._guesses(text), start=1):
        torch.testing.assert_close(ours, early[:, :-distance], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(own, made.logits[:, distance:], atol=1e-4, rtol=1e-4)


def test_with_ce_a_head_aims_at_the_token_after_the_next_of_the_text() -> None:
    """A text whose tokens count up: each distance has one right answer for every token."""
    heads = objective(loss="ce", layers=2)
    rows = (torch.arange(17)[None] * 3 + torch.tensor([[0], [20], [40], [60]])) % 90 + 3
    learn(heads, rows, 60, rate=2e-2)
    for distance, (logits, _) in enumerate(heads._guesses(rows[:, :-1]), start=1):
        assert float((logits.argmax(-1) == rows[:, 1 + distance :]).float().mean()) > 0.95


def test_the_losses_are_weighed_by_distance() -> None:
    found = objective(decay=0.5)(blocks(), 0, 1)
    parts = [float(found[f"distance {d}"].detach()) for d in (1, 2, 3)]
    total = parts[0] + 0.5 * parts[1] + 0.25 * parts[2]
    assert float(found["loss"].detach()) == pytest.approx(total)


@pytest.mark.parametrize("loss", ["ce", "kl"])
@pytest.mark.parametrize("rank", [None, 4])
def test_only_heads_are_trained_and_all_of_them(loss: str, rank: int | None) -> None:
    stock = stock_model("llama")
    before = copy.deepcopy(stock.state_dict())
    heads = MedusaObjective(stock, MedusaPlan(heads=2, rank=rank, loss=loss), 16)
    start = {name: p.detach().clone() for name, p in heads.named_parameters()}
    losses = learn(heads, blocks(), 20)
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(before[name], value) for name, value in stock.state_dict().items())
    assert all(not torch.equal(start[name], p) for name, p in heads.named_parameters())


# Whole runs


def decode(home: Path, heads: str) -> None:
    """Run an example with these heads; its results as JSON on stdout."""
    words = ["decode", "--model", "./model", "--method", "medusa", "--set", f"addon={heads}"]
    words += [*write_task(home), "--format", "json"]
    assert run(words) == 0


def test_a_run_leaves_heads_that_decode_and_that_guess_better_than_at_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TRAIN, "--heads", "3", *HELD_OUT]
    assert run([*words, "--steps", "60", "--out", "heads"]) == 0
    assert "tokens guessed ahead" in capsys.readouterr().out
    assert run([*words, "--steps", "1", "--learning-rate", "1e-9", "--out", "fresh"]) == 0
    capsys.readouterr()
    for ours, fresh in zip(quality(home / "heads"), quality(home / "fresh"), strict=True):
        assert ours["distance"] == fresh["distance"]
        assert ours["loss"] < fresh["loss"]
        assert ours["top10"] > fresh["top10"]
        assert ours["top1"] <= ours["top3"] <= ours["top5"] <= ours["top10"] <= 1
    decode(home, "heads")
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] == found["n_examples"] == 1


def test_a_low_rank_makes_the_addon_small(home: Path) -> None:
    words = [*TRAIN, "--steps", "1", "--heads", "2"]
    assert run([*words, "--out", "whole"]) == 0
    assert run([*words, "--rank", "4", "--save-dtype", "bfloat16", "--out", "small"]) == 0
    small = load_file(home / "small" / "addon.safetensors")
    assert {tensor.dtype for tensor in small.values()} == {torch.bfloat16}
    assert {name for name in small if name.startswith("0.")} == {
        *("0.0.linear.weight", "0.0.linear.bias", "0.1.down", "0.1.up")
    }
    sizes = [(home / n / "addon.safetensors").stat().st_size for n in ("whole", "small")]
    assert sizes[1] < sizes[0] / 5
    header = json.loads((home / "small" / "addon.json").read_text("utf-8"))
    assert header["method"] == "medusa"
    told = {"heads": 2, "layers": 1, "after": 0, "rank": 4, "loss": "kl", "decay": 0.8}
    assert header["options"] == {**told, "draft_vocab": 0}


@torch.no_grad()
def test_with_a_draft_vocabulary_logits_are_those_of_its_words() -> None:
    words = torch.tensor([3, 7, 20, 41])
    whole = MedusaObjective(stock_model("llama"), MedusaPlan(heads=2, rank=0), 16)
    plan = MedusaPlan(heads=2, rank=0, draft_vocab=4)
    narrow = MedusaObjective(stock_model("llama"), plan, 16, words=words)
    text = torch.tensor([tokens(16, 1)])
    for all_words, few in zip(whole._guesses(text), narrow._guesses(text), strict=True):
        for ours, theirs in zip(few, all_words, strict=True):
            torch.testing.assert_close(ours, theirs[..., words], atol=1e-5, rtol=1e-5)


def test_a_text_with_words_that_the_draft_vocabulary_lacks_is_learned_without_them() -> None:
    words = torch.tensor([3, 7, 20, 41])
    plan = MedusaPlan(heads=1, rank=0, loss="ce", draft_vocab=4)
    narrow = MedusaObjective(stock_model("llama"), plan, 16, words=words)
    assert narrow._entries(torch.tensor([[3, 8, 41, 90, 20]])).tolist() == [[0, -100, 3, -100, 2]]


def test_heads_over_a_draft_vocabulary_decode_exactly(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TRAIN, "--steps", "40", "--heads", "2", "--rank", "4", "--draft-vocab", "64"]
    assert run([*words, *HELD_OUT, "--out", "few"]) == 0
    capsys.readouterr()
    decode(home, "few")
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] == found["n_examples"] == 1


@pytest.mark.parametrize(
    ("options", "rank", "refused"),
    [
        ("--rank 4 --draft-vocab 20", "--rank 5", "made with --rank 4, not 5; give --rank 4"),
        ("--layers 2", "--rank 4", "made without --rank; leave it out"),
    ],
)
def test_a_run_goes_on_from_what_another_left(
    options: str, rank: str, refused: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TRAIN, "--heads", "2", *options.split()]
    otherwise = [
        ("--heads 3", "made with --heads 2, not 3; give --heads 2"),
        ("--after 2", "made with --after 0, not 2; give --after 0"),
        (rank, refused),
    ]
    assert_goes_on(words, home, otherwise, capsys)


def test_a_resumed_run_ends_with_the_same_heads(home: Path) -> None:
    words = [*TRAIN, "--steps", "6", "--heads", "2", "--rank", "4", "--checkpoint-every", "3"]
    assert run([*words, "--out", "whole"]) == 0
    assert run([*words, "--out", "twice"]) == 0
    (home / "twice" / "checkpoints" / "step-00000006").rename(home / "gone")
    assert run([*words, "--out", "twice", "--resume"]) == 0
    ours, theirs = (load_file(home / n / "addon.safetensors") for n in ("twice", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--heads 0", "--heads 0: use 1 or more"),
        ("--layers -1", "--layers -1: use 0 or more"),
        ("--rank -2", "--rank -2: use 0 or more"),
        ("--layers 0 --rank 0", "leaves nothing to train"),
        ("--after -1", "--after -1: use 0 or more"),
        ("--after 5", "heads after 5 layers, but this model has 4; use 1..4, or 0 for all"),
        ("--loss l2", "--loss 'l2': use ce or kl"),
        ("--decay 0", "--decay 0.0: use a value above 0, up to 1"),
        ("--decay 1.5", "--decay 1.5: use a value above 0, up to 1"),
        ("--heads 16", "--sequence 16 is too short for 16 heads; use 17 or more"),
        ("--save-dtype int4", "--save-dtype 'int4': use float32"),
        ("--sequence 200", "--sequence 200, but the model handles 96 tokens"),
    ],
)
def test_bad_settings_are_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert_refused([*TRAIN, "--out", "bad", *words.split()], message, capsys)
    assert not (home / "bad" / "train.jsonl").exists()


def test_a_dry_run_says_what_would_be_added(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TRAIN, "--steps", "5", "--heads", "2", "--out", "dry", "--dry-run"]) == 0
    # Two heads of a block [32, 32] with its bias and a matrix [300, 32].
    assert f"{2 * (32 * 32 + 32 + 300 * 32):,}" in capsys.readouterr().out


def test_a_text_too_short_for_guesses_is_an_error_that_says_so() -> None:
    with pytest.raises(ConfigError, match="use 4 or more"):
        MedusaObjective(stock_model("llama"), MedusaPlan(heads=3), 3)
