"""Training hidden transfer: what a pseudo state is held against, one matrix after another."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from ppdbench.cli.main import run
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError
from ppdbench.methods.hidden_transfer.network import TransferMatrices
from ppdbench.methods.hidden_transfer.plan import TransferPlan
from ppdbench.methods.hidden_transfer.strategy import HiddenTransferProposer
from ppdbench.methods.hidden_transfer.train import TransferObjective
from ppdbench.training.layers import TrainedLayers
from ppdbench.training.trainer import TrainConfig
from ppdbench.trees.tree import Tree
from tests.families import FAMILIES, stock_model
from tests.helpers import assert_near, staged
from tests.training.conftest import HELD_OUT
from tests.training.made import assert_goes_on, blocks, log, quality, training, write_task

LAYERS = (1, 2, 3)
CHAIN = Tree(((0,), (0, 0), (0, 0, 0)))
TRAIN = training("hidden-transfer")


def objective(family: str = "llama", **plan: Any) -> TransferObjective:
    """Matrices that are no longer the identity."""
    made = TransferObjective(stock_model(family), TransferPlan(**{"layers": LAYERS, **plan}), 16)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in made.matrices:
            matrix += 0.1 * torch.randn(matrix.shape, generator=draw)
    return made


# The loss


def as_written(model: Any, matrix: Tensor, step: int, layer: int, tokens: Tensor) -> Tensor:
    """The paper's loss, literally: true and pseudo states in one sequence with one mask."""
    layers, n = TrainedLayers(model, 16), tokens.shape[1]
    plain = layers.step(n)
    hidden = layers.embed(tokens, plain)
    for index in range(layer):
        hidden = layers.layer(index, hidden, plain)
    hidden = torch.cat([hidden, hidden @ matrix.T], dim=1)
    own = torch.arange(n)
    positions = torch.cat([own, (own + step).clamp(max=15)])[None]
    visible = torch.zeros(2 * n, 2 * n, dtype=torch.bool)
    for a in range(n):
        visible[a, : a + 1] = True
        visible[n + a, : a + step] = True  # counted from 1: tokens 1..q+i-1
        visible[n + a, n:] = False
        visible[n + a, n + a] = True
    places = positions, positions
    both = Step(0, 2 * n, 2 * n, positions, False, visible[None], lambda: places)
    for index in range(layer, layers.n_layers):
        hidden = layers.layer(index, hidden, both)
    logits = layers.logits(hidden).float().log_softmax(-1)
    guessed, truth = logits[:, n : 2 * n - step], logits[:, step:n]
    return kl_div(
        guessed.flatten(0, 1), truth.flatten(0, 1), reduction="batchmean", log_target=True
    )


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_loss_is_that_of_the_paper_written_out(family: str, step: int) -> None:
    made, rows = objective(family), blocks(2)
    found = made(rows, step - 1, 3)
    assert set(found) == {"loss", f"step {step}"}
    with torch.no_grad():
        truth = as_written(stock_model(family), made.matrices[step - 1], step, step, rows[:, :-1])
    assert float(found["loss"].detach()) == pytest.approx(float(truth), rel=1e-4)


def test_the_gradient_is_that_of_the_paper_written_out() -> None:
    made, rows = objective(), blocks(2)
    made(rows, 1, 3)["loss"].backward()
    matrix = made.matrices[1].detach().clone().requires_grad_(True)
    frozen = stock_model("llama").requires_grad_(False)
    as_written(frozen, matrix, 2, 2, rows[:, :-1]).backward()
    assert matrix.grad is not None
    assert made.matrices[1].grad is not None
    assert_near(made.matrices[1].grad, matrix.grad)


def test_the_other_direction_of_the_divergence_is_the_papers_formula() -> None:
    rows = blocks(2)
    made = objective(loss="reverse-kl")
    guessed, own = (log_softmax(x.float(), -1) for x in made._trained(rows, 1))
    truth = (guessed.exp() * (guessed - own)).sum(-1).mean()
    assert float(made(rows, 1, 3)["loss"].detach()) == pytest.approx(float(truth.detach()))
    assert float(objective()(rows, 1, 3)["loss"].detach()) != pytest.approx(float(truth.detach()))


@pytest.mark.parametrize("mask", ["teacher-forced", "chained", "masked"])
def test_a_first_step_knows_nothing_more_whatever_the_mask(mask: str) -> None:
    rows = blocks(2)
    truth = objective()(rows, 0, 3)["loss"].detach()
    assert float(objective(mask=mask)(rows, 0, 3)["loss"].detach()) == pytest.approx(float(truth))


def test_what_a_later_step_knows_is_what_the_mask_says() -> None:
    """Exchanging the token after q moves its guess if true tokens are seen, else not."""
    rows, other = blocks(1), blocks(1)
    other[0, 6] = (other[0, 6] + 1) % 90 + 3
    for mask, moves in (("teacher-forced", True), ("chained", False), ("masked", False)):
        made = objective(mask=mask)
        with torch.no_grad():
            before, after = (made._trained(x, 2)[0][0, 5] for x in (rows, other))
        assert torch.allclose(before, after, atol=1e-5) is not moves
    # And the pseudo states of earlier steps: only chained ones enter.
    for mask, moves in (("teacher-forced", False), ("chained", True), ("masked", False)):
        made = objective(mask=mask)
        with torch.no_grad():
            before = made._trained(rows, 2)[0]
            made.matrices[0] *= 2
            after = made._trained(rows, 2)[0]
        assert torch.allclose(before, after, atol=1e-5) is not moves


@torch.inference_mode()
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mistral-window", "opt-350m-like"])
def test_what_is_measured_is_what_decoding_guesses(family: str, masked: bool) -> None:
    made = objective(family, mask="masked" if masked else "chained")
    rows = blocks(1)
    text = rows[:, :-1]
    with torch.no_grad():
        ours = [logits for logits, _ in made._decoded(rows, 2)]
        trained = [made._trained(rows, job)[0][0] for job in range(3)]
    matrices = tuple(m.detach() for m in made.matrices)
    decoder = HiddenTransferProposer(TransferMatrices(LAYERS, matrices), CHAIN, {}, masked=masked)
    session = Session(staged(family), 40, spare=decoder.rows)
    theirs = decoder.guesses(session, text[0].tolist(), range(13))
    for distance in range(3):
        assert_near(ours[distance], theirs[:, distance])
        # Trained this way, nothing differs between training and decoding.
        assert_near(trained[distance][:13], theirs[:, distance])


# What is trained


@pytest.mark.parametrize("mask", ["teacher-forced", "chained", "masked"])
def test_one_matrix_is_trained_at_a_time_and_the_model_stays(mask: str) -> None:
    stock = stock_model("llama")
    before = copy.deepcopy(stock.state_dict())
    made = TransferObjective(stock, TransferPlan(layers=LAYERS, mask=mask), 16)
    assert all(torch.equal(matrix, torch.eye(32)) for matrix in made.matrices)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2, weight_decay=0.1)
    losses: list[float] = []
    for t in range(60):
        held = [matrix.detach().clone() for matrix in made.matrices]
        found = made(blocks(2), t, 60)
        found["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(found["loss"].detach()))
        moved = [not torch.equal(a, b) for a, b in zip(held, made.matrices, strict=True)]
        assert moved == [job == t // 20 for job in range(3)]
    for first in (0, 20, 40):
        assert losses[first + 19] < 0.95 * losses[first]
    assert all(torch.equal(before[name], value) for name, value in stock.state_dict().items())


def test_every_phase_has_the_whole_course_of_the_learning_rate() -> None:
    whole = TrainConfig(steps=30, phases=3, learning_rate=1.0, warmup_ratio=0.2)
    one = TrainConfig(steps=10, learning_rate=1.0, warmup_ratio=0.2)
    assert [whole.rate(t) for t in range(30)] == 3 * [one.rate(t) for t in range(10)]


def test_layers_that_were_not_named_are_spaced_as_in_the_paper() -> None:
    assert TransferPlan().settled(32).layers == (15, 20, 25)
    assert TransferPlan().settled(8).layers == (4, 5, 6)
    assert TransferPlan().settled(2).layers == (1, 1, 1)
    assert TransferPlan(compare=(1, 2)).settled(8).jobs == [(1,), (2,)]
    assert TransferPlan(layers=(3,), compare=(3, 5)).settled(8).jobs == [(3,), (3, 3), (3, 5)]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "the input of the first layer": ({"layers": (0,)}, r"after layer 0, .* 4 layers; use 1\.\.3"),
    "the last layer": ({"layers": (2, 4)}, r"after layer 4"),
    "falling layers": ({"layers": (2, 1)}, "none below the one before"),
    "a candidate below the step before": ({"layers": (3,), "compare": (2, 3)}, "none below"),
    "a candidate twice": ({"compare": (2, 2)}, "--compare names a layer twice"),
    "a mask that is not known": ({"mask": "causal"}, "--mask 'causal': use teacher-forced, chain"),
    "a loss that is not known": ({"loss": "ce"}, "--loss 'ce': use kl, reverse-kl"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_plans_that_cannot_work_are_refused_in_one_line(what: str) -> None:
    plan, message = BAD[what]
    with pytest.raises(ConfigError, match=message) as caught:
        TransferPlan(**plan).settled(4)
    assert "\n" not in str(caught.value)


def test_a_sequence_without_a_token_so_far_ahead_is_refused() -> None:
    with pytest.raises(ConfigError, match="--sequence 3 is too short for 3 steps; use 4"):
        TransferObjective(stock_model("llama"), TransferPlan(layers=LAYERS), 3)


# Whole runs


def test_a_run_trains_all_steps_and_measures_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TRAIN, "--out", "ht", "--steps", "8", *HELD_OUT]) == 0
    assert "tokens guessed ahead" in capsys.readouterr().out
    lines = log(home / "ht")
    assert [next(k for k in line if k.startswith("step ")) for line in lines] == [
        f"step {i}" for i in (1, 2, 3) for _ in range(8)
    ]
    assert [line["learning_rate"] for line in lines[:8]] == [
        line["learning_rate"] for line in lines[16:]
    ]
    assert [q["distance"] for q in quality(home / "ht")] == [1, 2, 3]
    header = json.loads((home / "ht" / "addon.json").read_text("utf-8"))
    assert header["options"] == {"layers": [2, 2, 3], "mask": "teacher-forced", "loss": "kl"}
    tensors = load_file(home / "ht" / "addon.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        f"step.{i}": (32, 32) for i in (1, 2, 3)
    }


def test_epochs_count_for_every_step(home: Path) -> None:
    """As many blocks as the text has, three times."""
    assert run([*TRAIN, "--out", "ht", "--epochs", "0.05"]) == 0
    facts = json.loads((home / "ht" / "training.json").read_text("utf-8"))
    assert facts["config"]["steps"] == 3 * round(0.05 * (facts["tokens"] // 17) / 4)
    assert facts["config"]["phases"] == 3


def test_a_run_that_was_stopped_between_steps_loses_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--steps", "4", "--checkpoint-every", "3", "--layers", "1,2"]
    assert run([*TRAIN, *common, "--out", "whole"]) == 0
    plain = TransferObjective.forward

    def stopped(self: TransferObjective, rows: Tensor, t: int, total: int) -> dict[str, Tensor]:
        if t == 7 and self.training:  # not where memory is measured
            raise KeyboardInterrupt
        return plain(self, rows, t, total)

    with monkeypatch.context() as patch:
        patch.setattr(TransferObjective, "forward", stopped)
        assert run([*TRAIN, *common, "--out", "parts"]) == 130
    assert run([*TRAIN, *common, "--out", "parts", "--resume"]) == 0
    assert log(home / "parts") == log(home / "whole")
    whole, parts = (load_file(home / name / "addon.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_candidates_are_measured_and_written_side_by_side(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--layers", "1", "--compare", "1,2,3", *HELD_OUT, "--steps", "2"]
    assert run([*TRAIN, *more, "--out", "study"]) == 0
    shown = capsys.readouterr().out
    assert "layer" in shown
    assert [(q["layer"], q["distance"]) for q in quality(home / "study")] == [
        (1, 2),
        (2, 2),
        (3, 2),
    ]
    assert not (home / "study" / "addon.json").exists()
    first = set()
    for layer in (1, 2, 3):
        folder = home / "study" / f"layer-{layer}"
        options = json.loads((folder / "addon.json").read_text("utf-8"))["options"]
        assert options["layers"] == [1, layer]
        tensors = load_file(folder / "addon.safetensors")
        assert set(tensors) == {"step.1", "step.2"}
        first.add(tensors["step.1"].sum().item())
    assert len(first) == 1  # the step before is the same for all


def test_what_was_trained_decodes_and_is_probed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TRAIN, "--out", "ht", "--steps", "4", "--layers", "1,2"]) == 0
    common = ["--model", "./model", *write_task(home, 12)]
    capsys.readouterr()
    asked = ["--method", "hidden-transfer", "--set", "addon=./ht", "--strict", "--format", "json"]
    assert run(["decode", *common, *asked]) == 0
    capsys.readouterr()
    asked = ["--method", "hidden-transfer:addon=./ht", "--format", "json"]
    assert run(["probe", "--what", "drafts", *common, *asked]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["distance"] for row in rows} == {1, 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "1,x"], "--layers '1,x': use numbers"),
        (["--layers", "3,1"], "none below the one before"),
        (["--layers", "9"], "after layer 9, but this model has 4 layers"),
        (["--mask", "open"], "--mask 'open'"),
        (["--save-dtype", "int8"], "--save-dtype 'int8'"),
    ],
)
def test_bad_options_are_one_line(
    home: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TRAIN, "--out", "ht", "--steps", "2", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_run_goes_on_from_what_another_left(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    otherwise = [
        ("--layers 1", "made with --layers 1,2, not 1; give --layers 1,2"),
        ("--layers 1 --compare 2", "made with --layers 1,2, not 1; give --layers 1,2"),
    ]
    assert_goes_on([*TRAIN, "--layers", "1,2"], home, otherwise, capsys)


def test_candidates_stand_behind_steps_that_were_trained_before(home: Path) -> None:
    """A comparison takes the steps before its own as they are, and its own starts anew."""
    assert run([*TRAIN, "--layers", "1", "--steps", "3", "--out", "first"]) == 0
    words = [*TRAIN, "--layers", "1", "--compare", "2,3", "--learning-rate", "1e-12"]
    assert run([*words, "--steps", "1", "--start", "first", "--out", "second"]) == 0
    before = load_file(home / "first" / "addon.safetensors")
    for candidate in ("layer-2", "layer-3"):
        found = load_file(home / "second" / candidate / "addon.safetensors")
        torch.testing.assert_close(found["step.1"], before["step.1"])
        torch.testing.assert_close(found["step.2"], torch.eye(len(found["step.2"])))
