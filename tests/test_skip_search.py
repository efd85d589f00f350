"""The search for blocks to skip: what it measures, what it finds, what it keeps."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError, DataError, UnknownName
from ppdbench.methods.draft_verify.gaussian import GaussianProcess, expected_improvement
from ppdbench.methods.draft_verify.skip_file import SkipSet, read_skips, save
from ppdbench.methods.draft_verify.skip_score import SkipScore, SkipScorer, predict
from ppdbench.methods.draft_verify.skip_search import SEARCHES, TriedSets, find
from tests.decoding.matrix import free
from tests.families import FAMILIES
from tests.helpers import staged, tokens

PROMPTS = [tokens(9, 0), tokens(6, 1), tokens(11, 2)]


def quiet(text: str, done: int, total: int | None) -> None:
    """Nobody watches."""


def scorer(model: StagedModel, n: int = 12, draft_length: int = 8) -> SkipScorer:
    texts = [(prompt, Limits(n)) for prompt in PROMPTS]
    return SkipScorer(model, texts, draft_length=draft_length)


# What is measured


@torch.inference_mode()
def drafted_one_by_one(model: StagedModel, skips: SkipSet, n: int) -> list[bool]:
    """The slow way: at every position a draft of one token over freshly made exact rows."""
    matches = []
    for prompt in PROMPTS:
        output = free(model, prompt, n)
        for at in range(len(output) - 1):
            session = Session(model, 64)
            session.reset([*prompt, *output[:at]])
            session.prefill()
            view = SkippedModel(model, skips.attention, skips.mlp).over(session)
            hidden = view.forward(view.ids([output[at]]), view.chain(1, len(session.tokens)))
            matches.append(int(view.logits(hidden)[0, -1].argmax()) == output[at + 1])
    return matches


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_one_pass_over_all_positions_agrees_where_single_drafts_do(name: str) -> None:
    model = staged(name)
    ours = scorer(model)
    for skips in (SkipSet((1,)), SkipSet((), (2,)), SkipSet((1, 2), (0,))):
        view = SkippedModel(model, skips.attention, skips.mlp)
        matches = [match for text in ours.texts for match in text.matches(view)]
        assert matches == drafted_one_by_one(model, skips, 12)


def test_with_nothing_skipped_every_token_agrees_and_nothing_is_gained() -> None:
    score = scorer(staged("llama")).score(SkipSet())
    assert score.agreement == 1
    assert score.cost == 1
    assert score.speedup == pytest.approx(1)


def test_measuring_a_set_leaves_no_trace() -> None:
    model = staged("llama")
    ours = scorer(model)
    first = ours.score(SkipSet((1,), (2,)))
    ours.score(SkipSet((0, 1, 2), (3,)))
    ours.scores.clear()
    assert ours.score(SkipSet((1,), (2,))) == first


def test_the_prediction_walks_through_the_runs_of_matches() -> None:
    yes, no = True, False
    # Drafts of 2 at cost 1/4: [1, 1, 0] commits 3, then [0] commits 1, then the last alone.
    assert predict([[yes, yes, no, no, yes]], 0.25, 2) == (pytest.approx(5 / (1.5 + 1.25 + 1)), 2)
    assert predict([[no] * 6], 0.5, 4) == (pytest.approx(6 / (5 * 1.5 + 1)), 1)
    assert predict([[yes] * 8], 0.0, 3) == (pytest.approx(8 / 2), 3)


def test_outputs_of_one_token_cannot_be_measured() -> None:
    with pytest.raises(DataError, match="no output has a second token"):
        SkipScorer(staged("llama"), [(PROMPTS[0], Limits(1))])


# What is found


class Puzzle(SkipScorer):
    """Blocks that each multiply the speed-up by what is given here, for a model of 3 layers."""

    def __init__(self, factors: list[float]) -> None:
        self.model = staged("llama")
        self.factors = factors
        self.scores = {}
        self.asked: list[SkipSet] = []

    def score(self, skips: SkipSet) -> SkipScore:
        self.asked.append(skips)
        blocks = [*skips.attention, *(4 + layer for layer in skips.mlp)]
        return SkipScore(1.0, 1.0, math.prod(self.factors[b] for b in blocks), 1)


FACTORS = [1.1, 0.8, 1.3, 0.9, 0.7, 1.2, 0.95, 1.05]
BEST = SkipSet((0, 2), (1, 3))


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
def test_both_searches_find_the_best_set_where_blocks_do_not_interact(strategy: str) -> None:
    found, tried = find(Puzzle(FACTORS), strategy, 80, 0, quiet)
    assert found == BEST
    assert tried <= 80


def test_greedy_finds_blocks_that_help_only_once_another_is_skipped() -> None:
    class Paired(Puzzle):
        def score(self, skips: SkipSet) -> SkipScore:
            value = super().score(skips).speedup
            both = 0 in skips.attention and 0 in skips.mlp
            return SkipScore(1.0, 1.0, value * (2 if both else 1), 1)

    found, _ = find(Paired(FACTORS), "greedy", 120, 0, quiet)
    assert found == SkipSet((0, 2), (0, 1, 3))


def test_greedy_tries_far_fewer_sets_than_all_blocks_in_every_round() -> None:
    _, tried = find(Puzzle(FACTORS), "greedy", 1000, 0, quiet)
    assert tried < 8 + 7 + 6 + 5 + 4


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
@pytest.mark.parametrize("budget", [1, 5, 20])
def test_no_more_sets_are_measured_than_the_budget_allows(strategy: str, budget: int) -> None:
    puzzle = Puzzle(FACTORS)
    found, tried = find(puzzle, strategy, budget, 0, quiet)
    assert len(set(puzzle.asked)) == len(puzzle.asked) == tried <= budget
    assert found in puzzle.asked


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
def test_where_nothing_helps_the_least_harmful_set_is_found(strategy: str) -> None:
    found, _ = find(Puzzle([0.5, 0.6, 0.9, 0.4, 0.3, 0.2, 0.1, 0.7]), strategy, 60, 0, quiet)
    assert found == SkipSet((2,))


def test_bayes_does_better_than_the_same_number_of_random_sets() -> None:
    draw = np.random.default_rng(5)
    wins = 0
    for seed in range(5):
        factors = draw.uniform(0.85, 1.2, 8).tolist()
        puzzle = Puzzle(factors)
        found, tried = find(puzzle, "bayes", 40, seed, quiet)
        sets = [tuple(draw.integers(0, 2, 8)) for _ in range(tried)]
        tries = TriedSets(puzzle, 1000, 0, quiet)
        best = max(puzzle.score(tries.skips(point)).speedup for point in sets)
        wins += puzzle.score(found).speedup > best
    assert wins >= 4


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
def test_a_seed_fixes_what_is_found(strategy: str) -> None:
    model = staged("llama")
    found = [find(scorer(model), strategy, 25, 3, quiet)[0] for _ in range(2)]
    assert found[0] == found[1]
    found[0].check(4, "found")


def test_greedy_on_a_model_is_as_good_as_any_single_block() -> None:
    model = staged("llama")
    ours = scorer(model)
    found, _ = find(ours, "greedy", 60, 0, quiet)
    singles = [SkipSet((i,)) for i in range(4)] + [SkipSet((), (i,)) for i in range(4)]
    assert ours.score(found).speedup >= max(ours.score(s).speedup for s in singles)


def test_unknown_searches_and_empty_budgets_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown search 'gready': did you mean greedy"):
        find(Puzzle(FACTORS), "gready", 5, 0, quiet)
    with pytest.raises(ConfigError, match="budget of 0 tries; use 1 or more"):
        find(Puzzle(FACTORS), "greedy", 0, 0, quiet)
    assert set(SEARCHES.names()) == {"greedy", "bayes"}


def test_the_process_passes_through_what_was_measured_and_doubts_the_rest() -> None:
    points = np.array(list(itertools.product([0, 1], repeat=4)))
    values = points @ np.array([1.0, -2.0, 0.5, 3.0])
    process = GaussianProcess(points[::2], values[::2])
    mean, deviation = process.predict(points)
    assert np.abs(mean[::2] - values[::2]).max() < 0.05
    assert deviation[1::2].min() > deviation[::2].max()


def test_expected_improvement_is_the_integral_over_gains() -> None:
    mean, deviation, best = np.array([1.0, 0.2, 2.0]), np.array([0.5, 1.0, 0.0]), 1.2
    draws = np.random.default_rng(0).normal(size=400_000)
    truth = [
        np.maximum(m + d * draws - best, 0).mean() for m, d in zip(mean, deviation, strict=True)
    ]
    assert expected_improvement(mean, deviation, best) == pytest.approx(truth, abs=2e-3)


# What is kept


def test_saved_sets_are_read_back_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "skip_layers.json"
    save(path, "a/b", SkipSet((1, 3), ()))
    save(path, "c", SkipSet((), (2,)))
    save(path, "a/b", SkipSet((0,), (1,)))
    expected = {"a/b": SkipSet((0,), (1,)), "c": SkipSet((), (2,))}
    assert read_skips(path) == expected
    assert json.loads(path.read_text()) == {
        "a/b": {"attention": [0], "mlp": [1]},
        "c": {"attention": [], "mlp": [2]},
    }
    assert [p.name for p in tmp_path.iterdir()] == ["skip_layers.json"]


def test_a_damaged_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "skip_layers.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        save(path, "a", SkipSet((1,)))
    assert path.read_text() == "{"


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*; choose another place"):
        save(tmp_path / "none" / "skip_layers.json", "a", SkipSet((1,)))


def test_on_a_real_model_the_search_beats_the_default_set(stories: Path) -> None:
    real = load(ModelSpec(name=str(stories), dtype="float32"))
    starts = ["Once upon a time", "Tim and his dog went to the park", "The sun was hot"]
    texts = [(real.tokenizer(s).input_ids, Limits(60, real.eos_ids)) for s in starts]
    ours = SkipScorer(real.staged, texts)
    found, _ = find(ours, "greedy", 60, 0, quiet)
    default = SkipSet.default(real.staged.n_layers)
    assert ours.score(found).speedup >= ours.score(default).speedup
