"""Training EAGLE's network: what it aims at, what it reads, what stays, what comes of a run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import kl_div, smooth_l1_loss

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods.eagle.plan import EaglePlan
from ppdbench.methods.eagle.rows import DraftRows
from ppdbench.methods.eagle.strategy import Eagle
from ppdbench.methods.eagle.train import EagleObjective, unrolled
from ppdbench.training.text import commonest
from tests.decoding.matrix import CAPACITY, free
from tests.families import FAMILIES, stock_model
from tests.helpers import assert_near, staged, tokens
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

TRAIN = training("eagle")
FITTING = sorted(set(FAMILIES) - {"opt-350m-like"})
WORDS = torch.tensor([3, 5, 8, 13, 21, 34, 55, 89])


def objective(family: str = "llama", words: Tensor | None = None, **plan: Any) -> EagleObjective:
    return EagleObjective(stock_model(family), EaglePlan(**plan), 16, 0, words=words)


def passes(eagle: EagleObjective, text: Tensor, n: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    return list(eagle._passes(text, n))


# What it reads


@torch.no_grad()
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("family", ["llama", "llama3-rope", "gpt2"])
def test_each_pass_is_what_drafting_comes_to_so_far_from_the_true_rows(
    family: str, version: int
) -> None:
    """Every row of every pass against a chain drafted there, in a cache, a row at a time."""
    eagle = objective(family, version=version).eval()
    network, text = eagle.network, tokens(14, 2)
    features = true_features(eagle, text)
    every = [states for states, _, _ in passes(eagle, torch.tensor([text]), 4)]
    for first in (0, 1, 6, 12):
        rows = DraftRows(network, 16, 8)
        state = rows.read(torch.tensor([text[1 : first + 2]]), features[:, : first + 1])[:, -1:]
        assert_near(state, every[0][:, first : first + 1])
        branches = rows.branches(state)
        for distance in range(1, min(4, 13 - first)):
            branches.extend(torch.tensor([0]), torch.tensor([text[first + 1 + distance]]))
            assert_near(branches.states, every[distance][:, first : first + 1])


@torch.no_grad()
def true_features(eagle: EagleObjective, text: list[int]) -> Tensor:
    taps: dict[int, Tensor] = {}
    eagle._frozen[0].last(torch.tensor([text[:-1]]), tap=taps.__setitem__)
    return eagle.network.features(taps)


def test_a_guess_depends_on_nothing_that_comes_later() -> None:
    eagle = objective(version=3)
    text = blocks()[:, :16]
    other = text.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 96
    pairs = zip(passes(eagle, text, 4), passes(eagle, other, 4), strict=True)
    for p, ((ours, _, _), (theirs, _, _)) in enumerate(pairs):
        # The row at i knows the token at i + 1, and rows begin at p.
        assert_near(ours[:, : 8 - p].detach(), theirs[:, : 8 - p].detach())
        assert not torch.allclose(ours[:, 8 - p], theirs[:, 8 - p])


def test_noise_follows_from_the_step_and_is_only_for_training() -> None:
    eagle = objective(version=1)
    rows = blocks()
    one, again, other = (eagle(rows, t, 9)["loss"].detach() for t in (4, 4, 5))
    assert one == again != other
    quiet = objective(version=1, noise=0.0)
    assert quiet(rows, 4, 9)["loss"] == quiet(rows, 5, 9)["loss"]
    assert objective(version=3).plan.half_width == 0
    clean = eagle._noisy(torch.zeros(1, 3, 32), 2)
    assert 0.09 < float(clean.abs().max()) <= 0.1


# What it aims at


@torch.no_grad()
@pytest.mark.parametrize("family", FITTING)
@pytest.mark.parametrize("version", [1, 3])
def test_a_pass_aims_at_what_the_model_says_so_many_tokens_further_on(
    family: str, version: int
) -> None:
    stock = stock_model(family)
    text = torch.tensor([tokens(16, 1)])
    truth = copy.deepcopy(stock)(text, output_hidden_states=True)
    eagle = EagleObjective(stock, EaglePlan(version=version), 16, 0)
    for p, (states, features, own) in enumerate(passes(eagle, text, 3)):
        assert states.shape == features.shape == (1, 15 - p, 32)
        assert_near(own, truth.logits[:, 1 + p :], 1e-4)
        if version == 1:
            assert_near(features, truth.hidden_states[-1][:, 1 + p :], 1e-4)


def test_version_1_weighs_features_and_a_tenth_of_the_tokens() -> None:
    eagle = objective(version=1, noise=0.0)
    rows = blocks()
    states, features, own = passes(eagle, rows[:, :-1], 1)[0]
    ours, theirs = (x.flatten(0, 1).log_softmax(-1) for x in (eagle.network.logits(states), own))
    expected = smooth_l1_loss(states, features)
    expected = expected + 0.1 * kl_div(ours, theirs, reduction="batchmean", log_target=True)
    found = eagle(rows, 0, 1)
    assert float(found["loss"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert set(found) == {"loss", "distance 1"}


def test_the_losses_are_weighed_pass_by_pass() -> None:
    found = objective(passes=3, decay=0.5)(blocks(), 0, 1)
    parts = [float(found[f"distance {d}"].detach()) for d in (1, 2, 3)]
    total = parts[0] + 0.5 * parts[1] + 0.25 * parts[2]
    assert float(found["loss"].detach()) == pytest.approx(total)


@pytest.mark.parametrize("loss", ["kl", "ce"])
def test_a_draft_vocabulary_is_trained_on_the_models_choice_among_its_words(loss: str) -> None:
    eagle = objective(words=WORDS, draft_vocab=len(WORDS), loss=loss, passes=1)
    assert torch.equal(eagle.network.all_words(), WORDS)
    states, _, own = passes(eagle, blocks()[:, :-1], 1)[0]
    ours = eagle.network.logits(states).flatten(0, 1).log_softmax(-1)
    whole = next(eagle._passes(blocks()[:, :-1], 1, whole=True))[2]
    torch.testing.assert_close(own, whole[..., WORDS])
    theirs = own.flatten(0, 1)
    if loss == "kl":
        mine = theirs.log_softmax(-1)
        expected = kl_div(ours, mine, reduction="batchmean", log_target=True)
    else:
        expected = -ours.gather(1, theirs.argmax(-1, keepdim=True)).mean()
    found = eagle(blocks(), 0, 1)["loss"]
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_head_of_its_own_starts_with_the_models_rows() -> None:
    stock = stock_model("llama")
    eagle = EagleObjective(stock, EaglePlan(draft_vocab=len(WORDS)), 16, 0, words=WORDS)
    own = stock.get_output_embeddings().weight[WORDS]
    assert torch.equal(eagle.network.lm_head.weight, own)
    eagle.network.lm_head.weight.data.zero_()
    assert float(own.abs().sum()) > 0, "the model's own rows were changed"


def test_the_draft_vocabulary_are_the_commonest_tokens_in_rising_order() -> None:
    text = torch.tensor([7, 7, 7, 2, 2, 9, 5, 5, 0]).numpy()
    assert commonest(text, 3, 12).tolist() == [2, 5, 7]
    assert commonest(text, 4, 12).tolist() == [0, 2, 5, 7]
    with pytest.raises(ConfigError, match=r"--draft-vocab 13, but this model has 12 tokens"):
        commonest(text, 13, 12)


VARIANTS: dict[str, dict[str, Any]] = {
    "1": {"version": 1},
    "1, further": {"version": 1, "passes": 3},
    "1, hard": {"version": 1, "loss": "ce"},
    "3": {"version": 3, "passes": 2},
    "3, low rank": {"version": 3, "passes": 2, "rank": 4},
    "3, own head": {"version": 3, "passes": 2, "draft_vocab": len(WORDS), "words": WORDS},
    "3, rows changed": {
        "version": 3,
        "passes": 2,
        "draft_vocab": len(WORDS),
        "words": WORDS,
        "rank": 4,
    },
    "3, hard": {"version": 3, "passes": 2, "loss": "ce", "ffn": 20},
}


@pytest.mark.parametrize("what", sorted(VARIANTS))
def test_only_the_network_is_trained_and_all_of_it(what: str) -> None:
    eagle = objective(**VARIANTS[what])
    model = eagle._frozen[0].model
    before = copy.deepcopy(model.state_dict())
    start = {name: p.detach().clone() for name, p in eagle.named_parameters()}
    losses = learn(eagle, blocks(), 20)
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(name.startswith("network.") for name in start)
    assert all(not torch.equal(start[name], p) for name, p in eagle.named_parameters())


@pytest.mark.parametrize("version", [1, 3])
def test_gradients_flow_through_its_own_states_and_keys(version: int) -> None:
    """The second pass alone must reach what only the first one read."""
    eagle = objective(version=version)
    features = torch.randn(2, 9, 32, requires_grad=True)
    *_, second = unrolled(eagle.network, blocks()[:2, :9], features, 2)
    second[:, -1].sum().backward()
    assert features.grad is not None
    reached = features.grad.abs().sum((0, 2)) > 0
    assert reached.tolist() == [True] * 8 + [False]


# Whole runs


RUNS = {
    "version 1": ["--version", "1"],
    "version 3": ["--passes", "3"],
    "own head": ["--passes", "3", "--draft-vocab", "64"],
}


@pytest.mark.parametrize("what", sorted(RUNS))
def test_a_run_leaves_a_network_that_decodes_and_that_guesses_better_than_at_first(
    what: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TRAIN, *RUNS[what], *HELD_OUT]
    assert run([*words, "--steps", "60", "--out", "eagle"]) == 0
    assert "tokens guessed ahead" in capsys.readouterr().out
    assert run([*words, "--steps", "1", "--learning-rate", "1e-9", "--out", "fresh"]) == 0
    capsys.readouterr()
    ours, fresh = quality(home / "eagle"), quality(home / "fresh")
    assert [q["distance"] for q in ours] == [1, 2, 3, 4, 5]
    for trained, untrained in zip(ours, fresh, strict=True):
        assert trained["top10"] > untrained["top10"]
        assert trained["top1"] <= trained["top3"] <= trained["top5"] <= trained["top10"] <= 1
    decode = ["decode", "--model", "./model", "--method", "eagle", "--set", "addon=eagle"]
    decode += [*write_task(home), "--format", "json"]
    assert run(decode) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] == found["n_examples"] == 1


@torch.inference_mode()
@pytest.mark.parametrize("what", sorted(VARIANTS))
def test_a_network_guesses_after_loading_what_it_guessed_in_training(
    what: str, tmp_path: Path
) -> None:
    stock, words = stock_model("llama"), tokenizer(300, 96)
    settings = dict(VARIANTS[what])
    vocabulary = settings.pop("words", None)
    eagle = EagleObjective(stock, EaglePlan(**settings), 40, 0, words=vocabulary)
    for parameter in eagle.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.2)
    eagle.save(tmp_path, words, None)
    # The model's own text: the next token that a network is given is the text's and the model's.
    text = [*(prompt := tokens(9, 3)), *free(staged("llama"), prompt, 28)]
    states, _, _ = passes(eagle, torch.tensor([text]), 1)[0]
    truth = eagle.network.spread(eagle.network.logits(states), float("-inf"))[0]
    loaded = take_over(ModelSpec(name="tiny"), stock, words)
    decoder = Eagle(addon=str(tmp_path)).prepare(Setup(loaded, CAPACITY))
    found = decoder.guesses(Session(loaded.staged, CAPACITY), text, range(8, 36))
    torch.testing.assert_close(found[:, 0], truth[8:36], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("what", sorted(RUNS))
def test_a_resumed_run_ends_with_the_same_network(what: str, home: Path) -> None:
    words = [*TRAIN, *RUNS[what], "--steps", "6", "--checkpoint-every", "3"]
    assert run([*words, "--out", "whole"]) == 0
    assert run([*words, "--out", "twice"]) == 0
    (home / "twice" / "checkpoints" / "step-00000006").rename(home / "gone")
    assert run([*words, "--out", "twice", "--resume"]) == 0
    ours, theirs = (load_file(home / n / "addon.safetensors") for n in ("twice", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("what", [*sorted(RUNS), "low rank"])
def test_a_run_goes_on_from_what_another_left(
    what: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = RUNS.get(what, ["--passes", "2", "--draft-vocab", "20", "--rank", "4"])
    otherwise = [("--ffn 40", "made with --ffn 48, not 40; give --ffn 48")]
    if "--draft-vocab" in options:
        otherwise.append(("--draft-vocab 9", "not 9; give --draft-vocab"))
    else:
        otherwise.append(("--version 3 --rank 2", "made with --"))
    assert_goes_on([*TRAIN, *options], home, otherwise, capsys)


def test_an_addon_says_what_it_is(home: Path) -> None:
    words = [*TRAIN, "--steps", "1", "--draft-vocab", "20", "--ffn", "40", "--passes", "2"]
    assert run([*words, "--save-dtype", "bfloat16", "--out", "small"]) == 0
    tensors = load_file(home / "small" / "addon.safetensors")
    assert tensors["d2t"].dtype == torch.int64
    assert {t.dtype for name, t in tensors.items() if name != "d2t"} == {torch.bfloat16}
    assert tensors["lm_head.weight"].shape == (20, 32)
    assert tensors["layers.0.mlp.up_proj.weight"].shape == (40, 32)
    assert not any("embed" in name for name in tensors)
    header = json.loads((home / "small" / "addon.json").read_text("utf-8"))
    assert header["method"] == "eagle"
    options = header["options"]
    assert (options["eagle"], options["draft_vocab"], options["reads"]) == (3, 20, [1, 2, 4])
    assert options["network"]["intermediate_size"] == 40
    assert options["plan"]["passes"] == 2


SIZES: dict[str, dict[str, Any]] = {
    "1": {"version": 1},
    "3, the model's head": {"version": 3},
    "3, low rank": {"version": 3, "rank": 32},
    "3, own head": {"version": 3, "draft_vocab": 512, "words": torch.arange(512)},
}


@pytest.mark.parametrize("what", sorted(SIZES))
def test_a_network_for_a_small_model_is_small(what: str) -> None:
    """In bfloat16 under 3 MB for the shape of the embedded model."""
    settings = dict(SIZES[what])
    words = settings.pop("words", None)
    shape = {"hidden_size": 256, "intermediate_size": 704, "vocab_size": 4096}
    stock = stock_model("llama-mha-tied", num_hidden_layers=8, num_key_value_heads=2, **shape)
    eagle = EagleObjective(stock, EaglePlan(**settings), 16, 0, words=words)
    assert 2 * sum(p.numel() for p in eagle.parameters()) < 3e6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--version 2", "--version 2: use 1 or 3 (2 drafts with what 1 trains)"),
        ("--passes 0", "--passes 0: use 1 or more"),
        ("--draft-vocab -1", "--draft-vocab -1: use 0 or more"),
        ("--draft-vocab 301", "--draft-vocab 301, but this model has 300 tokens; use 1..300"),
        ("--rank -2", "--rank -2: use 0 or more"),
        ("--ffn -1", "--ffn -1: use 0 or more"),
        ("--version 1 --rank 4", "version 1 reads through the model's head"),
        ("--version 1 --draft-vocab 20", "version 1 reads through the model's head"),
        ("--loss l2", "--loss 'l2': use ce or kl"),
        ("--decay 0", "--decay 0.0: use a value above 0, up to 1"),
        ("--noise -0.1", "--noise -0.1: use 0 or more"),
        ("--noise nan", "--noise nan: use 0 or more"),
        ("--passes 16", "--sequence 16 is too short for 16 passes; use 17 or more"),
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
    words = [*TRAIN, "--steps", "5", "--version", "1", "--out", "dry", "--dry-run"]
    assert run(words) == 0
    # fc, four projections [32, 32], three of the MLP [48, 32] and a norm.
    assert f"{32 * 64 + 4 * 32 * 32 + 3 * 48 * 32 + 32:,}" in capsys.readouterr().out
