"""The search for blocks to skip: what it finds, and how many sets it tries for it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.errors import ConfigError, UnknownName
from ppdbench.methods.draft_verify.skip_file import SkipSet
from ppdbench.methods.draft_verify.skip_score import SkipScore, SkipScorer
from ppdbench.methods.draft_verify.skip_search import SEARCHES, TriedSets, best_skips
from tests.helpers import staged
from tests.methods.draft_verify.made import scorer


def quiet(text: str, done: int, total: int | None) -> None:
    """Nobody watches."""


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
    found, tried = best_skips(Puzzle(FACTORS), strategy, 80, 0, quiet)
    assert found == BEST
    assert tried <= 80


def test_greedy_finds_blocks_that_help_only_once_another_is_skipped() -> None:
    class Paired(Puzzle):
        def score(self, skips: SkipSet) -> SkipScore:
            value = super().score(skips).speedup
            both = 0 in skips.attention and 0 in skips.mlp
            return SkipScore(1.0, 1.0, value * (2 if both else 1), 1)

    found, _ = best_skips(Paired(FACTORS), "greedy", 120, 0, quiet)
    assert found == SkipSet((0, 2), (0, 1, 3))


def test_greedy_tries_far_fewer_sets_than_all_blocks_in_every_round() -> None:
    _, tried = best_skips(Puzzle(FACTORS), "greedy", 1000, 0, quiet)
    assert tried < 8 + 7 + 6 + 5 + 4


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
@pytest.mark.parametrize("budget", [1, 5, 20])
def test_no_more_sets_are_measured_than_the_budget_allows(strategy: str, budget: int) -> None:
    puzzle = Puzzle(FACTORS)
    found, tried = best_skips(puzzle, strategy, budget, 0, quiet)
    assert len(set(puzzle.asked)) == len(puzzle.asked) == tried <= budget
    assert found in puzzle.asked


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
def test_where_nothing_helps_the_least_harmful_set_is_found(strategy: str) -> None:
    found, _ = best_skips(Puzzle([0.5, 0.6, 0.9, 0.4, 0.3, 0.2, 0.1, 0.7]), strategy, 60, 0, quiet)
    assert found == SkipSet((2,))


def test_bayes_does_better_than_the_same_number_of_random_sets() -> None:
    draw = np.random.default_rng(5)
    wins = 0
    for seed in range(5):
        factors = draw.uniform(0.85, 1.2, 8).tolist()
        puzzle = Puzzle(factors)
        found, tried = best_skips(puzzle, "bayes", 40, seed, quiet)
        sets = [tuple(draw.integers(0, 2, 8)) for _ in range(tried)]
        tries = TriedSets(puzzle, 1000, 0, quiet)
        best = max(puzzle.score(tries.skips(point)).speedup for point in sets)
        wins += puzzle.score(found).speedup > best
    assert wins >= 4


@pytest.mark.parametrize("strategy", ["greedy", "bayes"])
def test_a_seed_fixes_what_is_found(strategy: str) -> None:
    model = staged("llama")
    found = [best_skips(scorer(model), strategy, 25, 3, quiet)[0] for _ in range(2)]
    assert found[0] == found[1]
    found[0].check(4, "found")


def test_greedy_on_a_model_is_as_good_as_any_single_block() -> None:
    model = staged("llama")
    ours = scorer(model)
    found, _ = best_skips(ours, "greedy", 60, 0, quiet)
    singles = [SkipSet((i,)) for i in range(4)] + [SkipSet((), (i,)) for i in range(4)]
    assert ours.score(found).speedup >= max(ours.score(s).speedup for s in singles)


def test_unknown_searches_and_empty_budgets_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown search 'gready': did you mean greedy"):
        best_skips(Puzzle(FACTORS), "gready", 5, 0, quiet)
    with pytest.raises(ConfigError, match="budget of 0 tries; use 1 or more"):
        best_skips(Puzzle(FACTORS), "greedy", 0, 0, quiet)
    assert set(SEARCHES.names()) == {"greedy", "bayes"}


def test_on_a_real_model_the_search_beats_the_default_set(stories: Path) -> None:
    real = load(ModelSpec(name=str(stories), dtype="float32"))
    starts = ["Once upon a time", "Tim and his dog went to the park", "The sun was hot"]
    texts = [(real.tokenizer(s).input_ids, Limits(60, real.eos_ids)) for s in starts]
    ours = SkipScorer(real.staged, texts)
    found, _ = best_skips(ours, "greedy", 60, 0, quiet)
    default = SkipSet.default(real.staged.n_layers)
    assert ours.score(found).speedup >= ours.score(default).speedup
