"""Answers alone are learned from: which places count, and that all else stays as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from ppdbench.cli.main import run
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError, DataError
from ppdbench.methods.eagle.plan import EaglePlan
from ppdbench.methods.eagle.train import EagleObjective
from ppdbench.methods.hidden_transfer.plan import TransferPlan
from ppdbench.methods.hidden_transfer.train import TransferObjective
from ppdbench.methods.layerskip.recipe import Recipe
from ppdbench.methods.layerskip.train import LayerSkipObjective
from ppdbench.methods.medusa.plan import MedusaPlan
from ppdbench.methods.medusa.train import MedusaObjective
from ppdbench.methods.prompt_tokens.plan import PromptPlan
from ppdbench.methods.prompt_tokens.train import PromptsObjective
from ppdbench.training import text
from ppdbench.training.heads import HeadsObjective
from ppdbench.training.text import TextSpec, TokenBlocks, commonest, tokenized
from tests.families import stock_model
from tests.training.made import SMALL, blocks, quality

TOKENIZER = tokenizer(300, 512)
LENGTH = 17  # of a block: 16 tokens run, and the one after them
# An answer in the middle, a prompt that ends late, two answers with a prompt between, no answer.
LEARNED = torch.tensor(
    [
        [0] * 5 + [1] * 6 + [0] * 6,
        [0] * 13 + [1] * 4,
        [1] * 4 + [0] * 6 + [1] * 7,
        [0] * 17,
    ]
).bool()


def rows() -> tuple[Tensor, Tensor]:
    """Blocks, and the same with prompts marked."""
    plain = blocks(4, LENGTH)
    return plain, torch.where(LEARNED, plain, ~plain)


def counted(distance: int) -> list[tuple[int, int]]:
    """Sequences and places whose own next token and guessed token are both of an answer."""
    return [
        (sequence, place)
        for sequence, learned in enumerate(LEARNED.tolist())
        for place in range(LENGTH - 1 - distance)
        if learned[place + 1] and learned[place + 1 + distance]
    ]


def divergence(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean over places of KL from the model's own distribution."""
    each = [
        kl_div(log_softmax(ours, -1), log_softmax(own, -1), reduction="sum", log_target=True)
        for ours, own in pairs
    ]
    return torch.stack(each).mean()


def own_logits(objective: Any, plain: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = objective.layers.model(plain[:, :-1]).logits
    return found


@pytest.mark.parametrize("loss", ["kl", "ce"])
def test_medusa_learns_guesses_in_answers_alone(loss: str) -> None:
    plain, marked = rows()
    objective = MedusaObjective(stock_model("llama"), MedusaPlan(heads=3, rank=4, loss=loss), 16)
    own, found = own_logits(objective, plain), objective(marked, 0, 1)
    every = list(objective._guesses(plain[:, :-1]))
    for distance, (logits, _) in enumerate(every, start=1):
        where = counted(distance)
        if loss == "kl":
            truth = divergence([(logits[b, q], own[b, q + distance]) for b, q in where])
        else:
            guesses = torch.stack([logits[b, q] for b, q in where])
            follow = torch.stack([plain[b, q + 1 + distance] for b, q in where])
            truth = cross_entropy(guesses, follow)
        torch.testing.assert_close(found[f"distance {distance}"], truth)


@pytest.mark.parametrize("version", [1, 3])
def test_eagle_learns_guesses_in_answers_alone(version: int) -> None:
    plain, marked = rows()
    plan = EaglePlan(version=version, passes=3, noise=0.0)
    objective = EagleObjective(stock_model("llama"), plan, 16, 0)
    found = objective(marked, 0, 1)
    for distance, (states, features, own) in enumerate(
        objective._passes(plain[:, :-1], 3), start=1
    ):
        where = counted(distance)
        taken = [torch.stack([x[b, q] for b, q in where]) for x in (states, features, own)]
        truth = objective._one(taken[0], taken[1], taken[2])
        torch.testing.assert_close(found[f"distance {distance}"], truth)


@pytest.mark.parametrize("version", [1, 3])
def test_an_answer_of_one_token_has_nothing_to_guess_and_spoils_nothing(version: int) -> None:
    plain = blocks(1, LENGTH)
    learned = torch.zeros(1, LENGTH).bool()
    learned[0, 9] = True
    objective = EagleObjective(stock_model("llama"), EaglePlan(version=version, passes=3), 16, 0)
    loss = objective(torch.where(learned, plain, ~plain), 0, 1)["loss"]
    assert float(loss.detach()) == 0
    loss.backward()


def test_noise_on_features_is_the_same_however_a_batch_is_split() -> None:
    plan = EaglePlan(version=1, passes=1, noise=0.2)
    objective = EagleObjective(stock_model("llama"), plan, 16, 0)
    features = torch.zeros(4, 15, 32)
    whole = objective._noisy(features, 3)
    assert len({tuple(row.flatten().tolist()) for row in whole}) == 4
    objective.first_row = 2
    assert torch.equal(objective._noisy(features[2:], 3), whole[2:])
    assert not torch.equal(objective._noisy(features[2:], 4), whole[2:])


@pytest.mark.parametrize("mask", ["teacher-forced", "chained", "masked"])
def test_hidden_transfer_learns_guesses_in_answers_alone(mask: str) -> None:
    plain, marked = rows()
    objective = TransferObjective(stock_model("llama"), TransferPlan(layers=(1, 2), mask=mask), 16)
    own = own_logits(objective, plain)
    for job, distance in ((0, 1), (1, 2)):
        logits, _ = objective._trained(plain, job)
        truth = divergence([(logits[b, q], own[b, q + distance]) for b, q in counted(distance)])
        torch.testing.assert_close(objective(marked, job, 2)["loss"], truth)


def test_prompt_tokens_learn_behind_places_of_answers_alone() -> None:
    plain, marked = rows()
    plan = PromptPlan(prompts=2, insertions=14)
    objective = PromptsObjective(stock_model("llama"), plan, 16, [7, 8], seed=0)
    own, found = own_logits(objective, plain), objective(marked, 0, 1)
    drawn = {place for _, place in counted(2)}  # that have a token to guess at every distance
    logits, _ = objective._guesses(plain[:, :-1], torch.arange(14))
    for distance in (1, 2):
        where = [(b, q) for b, q in counted(distance) if q in drawn]
        pairs = [(logits[b, q, distance - 1], own[b, q + distance]) for b, q in where]
        torch.testing.assert_close(found[f"distance {distance}"], divergence(pairs))


@pytest.mark.parametrize("loss", ["kl", "ce"])
def test_heads_learn_what_follows_in_answers_alone(loss: str) -> None:
    plain, marked = rows()
    objective = HeadsObjective(stock_model("llama"), [2], 16, loss=loss, rank=3)
    own, where = own_logits(objective, plain), counted(0)
    normed, _ = objective._frozen_states(plain[:, :-1], None)
    logits = objective.readers()[2](normed[2])
    if loss == "kl":
        truth = divergence([(logits[b, q], own[b, q]) for b, q in where])
    else:
        guesses = torch.stack([logits[b, q] for b, q in where])
        truth = cross_entropy(guesses, torch.stack([plain[b, q + 1] for b, q in where]))
    torch.testing.assert_close(objective(marked, 0, 1)["layer 2"], truth)


def test_a_whole_model_learns_answers_alone() -> None:
    plain, marked = rows()
    model = stock_model("llama")
    objective = LayerSkipObjective(model, Recipe(p_max=0.0, e_scale=None), 16, 0).eval()
    logits = model(plain[:, :-1]).logits
    guesses = torch.stack([logits[b, q] for b, q in counted(0)])
    truth = cross_entropy(guesses, torch.stack([plain[b, q + 1] for b, q in counted(0)]))
    torch.testing.assert_close(objective(marked, 0, 1)["loss"], truth)


def test_a_batch_with_nothing_to_learn_moves_nothing() -> None:
    nothing = ~blocks(2, LENGTH)
    model = stock_model("llama")
    for objective in (
        MedusaObjective(model, MedusaPlan(heads=2), 16),
        EagleObjective(model, EaglePlan(passes=2), 16, 0),
        TransferObjective(model, TransferPlan(layers=(1, 2)), 16),
        PromptsObjective(model, PromptPlan(prompts=2, insertions=5), 16, [7, 8], seed=0),
        HeadsObjective(model, [2], 16, loss="kl", rank=3),
    ):
        loss = objective(nothing, 0, 2)["loss"]
        assert float(loss.detach()) == 0
        loss.backward()
        grads = [p.grad for p in objective.parameters() if p.grad is not None]
        assert grads
        assert not any(bool(grad.any()) for grad in grads)


def test_prompts_alone_are_passed_over_in_measuring() -> None:
    """Two blocks are measured at once: of the first two none counts, or none far ahead."""
    plain, marked = rows()
    short = ~plain[:2]
    short[0, 3:5] = plain[0, 3:5]  # an answer of two tokens
    model = stock_model("llama")
    for objective in (
        MedusaObjective(model, MedusaPlan(heads=2, rank=4), 16, words=torch.arange(3, 96)),
        EagleObjective(model, EaglePlan(passes=2), 16, 0),
        TransferObjective(model, TransferPlan(layers=(1, 2)), 16),
        PromptsObjective(model, PromptPlan(prompts=2, insertions=14), 16, [7, 8], seed=0),
        HeadsObjective(model, [2], 16, loss="kl", rank=3),
    ):
        alone = objective.quality(marked.flatten().numpy(), 16)
        nothing = torch.cat([~plain[:2], marked]).flatten().numpy()
        assert objective.quality(nothing, 16) == alone
        assert objective.quality(torch.cat([short, marked]).flatten().numpy(), 16)


@pytest.mark.parametrize("kind", ["medusa", "heads"])
def test_what_is_measured_are_answers_alone(kind: str) -> None:
    """A measure of answers, against one of single places put together by hand."""
    plain, marked = rows()
    ids, flat = plain.flatten().numpy(), marked.flatten().numpy()
    model = stock_model("llama")
    if kind == "heads":
        objective: Any = HeadsObjective(model, [2], 16, rank=3)
        own = own_logits(objective, plain).argmax(-1)
        (found,) = (q for q in objective.quality(flat, 16) if (q.layer, q.head) == (4, "N"))
        right = [own[b, q] == plain[b, q + 1] for b, q in counted(0)]
        assert found.accuracy == pytest.approx(np.mean(right))
        assert found.top1 == 1
    else:
        objective = MedusaObjective(model, MedusaPlan(heads=3), 16)
        own = own_logits(objective, plain)
        for distance, (logits, _) in enumerate(objective._guesses(plain[:, :-1]), start=1):
            where = counted(distance)
            hit = [logits[b, q].argmax() == own[b, q + distance].argmax() for b, q in where]
            found = objective.quality(flat, 16)[distance - 1]
            assert found.top1 == pytest.approx(np.mean(hit))
    assert objective.quality(ids, 16) != objective.quality(flat, 16)


# Text


def answers(folder: Path, *lines: dict[str, Any]) -> TextSpec:
    folder.mkdir(exist_ok=True)
    file = folder / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return TextSpec(sources=(str(file),), learn="answers")


def ids_of(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def test_a_prompt_is_marked_and_its_answer_and_the_end_are_not(tmp_path: Path) -> None:
    spec = answers(tmp_path, {"text": "What? That.", "prompt_chars": 6}, {"text": "plain"})
    found = tokenized(spec, TOKENIZER, 300, tmp_path / "t.bin").tolist()
    end = TOKENIZER.eos_token_id
    prompt = ids_of("What? ")
    assert found == [~i for i in prompt] + [*ids_of("That."), end, *ids_of("plain"), end]
    # The same folder read as it was marked, and anew where all is learned from.
    assert tokenized(spec, TOKENIZER, 300, tmp_path / "t.bin").tolist() == found
    whole = TextSpec(sources=spec.sources)
    again = tokenized(whole, TOKENIZER, 300, tmp_path / "t.bin")
    assert again.tolist() == [*ids_of("What? That."), end, *ids_of("plain"), end]
    assert again.dtype == np.uint16


def test_a_prompt_behind_plain_text_is_marked_as_well(tmp_path: Path) -> None:
    lines = [{"text": "plain"}] * 3 + [{"text": "What? That.", "prompt_chars": 6}]
    found = tokenized(answers(tmp_path, *lines), TOKENIZER, 300, tmp_path / "t.bin")
    end, plain = TOKENIZER.eos_token_id, ids_of("plain")
    prompt = [~i for i in ids_of("What? ")]
    assert found.tolist() == [*plain, end] * 3 + [*prompt, *ids_of("That."), end]


def test_plain_text_is_read_once_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = answers(tmp_path, {"text": "plain"})
    opened: list[TextSpec] = []
    honest = text._documents

    def watched(asked: TextSpec) -> Any:
        opened.append(asked)
        return honest(asked)

    monkeypatch.setattr(text, "_documents", watched)
    for _ in range(2):
        assert tokenized(spec, TOKENIZER, 300, tmp_path / "t.bin").dtype == np.uint16
    assert opened == [spec]


def test_blocks_with_nothing_to_learn_are_passed_over() -> None:
    ids = np.arange(40, dtype=np.int32)
    ids[10:30] = ~ids[10:30]
    made = TokenBlocks(ids, 10, seed=0)
    assert made.count == 2
    assert sorted(made.batch(0, 2)[:, 0].tolist()) == [0, 30]
    with pytest.raises(DataError, match="prompts alone and no answers; use --learn-from all"):
        TokenBlocks(np.full(40, ~5, dtype=np.int32), 10, seed=0)


def test_a_draft_vocabulary_is_of_answers_before_prompts() -> None:
    ids = np.array([~7, ~7, ~7, ~2, 4, 4, 9], dtype=np.int32)
    assert commonest(ids, 1, 12).tolist() == [4]
    assert commonest(ids, 2, 12).tolist() == [4, 9]
    assert commonest(ids, 3, 12).tolist() == [4, 7, 9]


@pytest.mark.parametrize("value", [-1, 4, "2", 1.0, True, None])
def test_a_prompt_as_long_as_no_text_is_refused(value: object, tmp_path: Path) -> None:
    spec = answers(tmp_path, {"text": "one", "prompt_chars": value})
    with pytest.raises(DataError, match=r"answers.jsonl line 1: prompt_chars is .*; use 0\.\.3"):
        tokenized(spec, TOKENIZER, 300, tmp_path / "t.bin")


def test_other_things_to_learn_from_are_refused() -> None:
    with pytest.raises(ConfigError, match="--learn-from 'prompts': use answers or all"):
        TextSpec(sources=("x",), learn="prompts")


def test_answers_of_a_model_train_what_drafts_for_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From `ppdbench answers` to a training and its measure, prompts apart or with them."""
    words = ["--model", "./model", "--text", "text.txt", "--max-new-tokens", "24"]
    assert run(["answers", *words, "--max-prompt-tokens", "40", "--out", "answers"]) == 0
    train = ["train", "medusa", "--model", "./model", "--text", "answers", "--heads", "2"]
    train += ["--held-out", "answers", "--steps", "2", *SMALL]
    assert run([*train, "--out", "of-answers"]) == 0
    assert run([*train, "--out", "of-all", "--learn-from", "all"]) == 0
    assert quality(home / "of-answers") != quality(home / "of-all")
    told = [json.loads((home / d / "training.json").read_text()) for d in ("of-answers", "of-all")]
    assert [each["text"]["learn"] for each in told] == ["answers", "all"]
    capsys.readouterr()
