"""The search for the blocks to leave out of drafts: the set that promises the most.

Zhang et al. 2023 search by Bayesian optimisation of measured time. Here the objective is the
speed-up that agreement and memory traffic predict, so that the outcome depends on the model
and the examples alone and is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ppdbench.engine.loading import load
from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_writable
from ppdbench.methods.draft_verify.gaussian import (
    Array,
    GaussianProcess,
    anywhere,
    candidates,
    expected_improvement,
)
from ppdbench.methods.draft_verify.skip_file import SkipSet, read_skips, save_skips
from ppdbench.methods.draft_verify.skip_score import SkipScore, SkipScorer
from ppdbench.registry import Registry
from ppdbench.runs.workload import Report, RunConfig, Workload, limits_of

Search = Callable[["TriedSets"], None]

SEARCHES: Registry[Search] = Registry("search")
N_CANDIDATES = 512

Choices = tuple[int, ...]  # one 0 or 1 per attention, then one per MLP


class Exhausted(Exception):
    """The budget of a search is spent."""


class TriedSets:
    """The sets tried so far and what each promises, within a budget."""

    def __init__(self, scorer: SkipScorer, budget: int, seed: int, report: Report) -> None:
        self.scorer, self.budget, self.report = scorer, budget, report
        self.generator = np.random.default_rng(seed)
        self.n_layers = scorer.model.n_layers
        self.values: dict[Choices, float] = {}

    def value(self, point: Choices) -> float:
        """The predicted speed-up at a point; one that is new counts against the budget."""
        if point not in self.values:
            if len(self.values) >= self.budget:
                raise Exhausted
            self.values[point] = self.scorer.score(self.skips(point)).speedup
            self.report("searching", len(self.values), self.budget)
        return self.values[point]

    def skips(self, point: Choices) -> SkipSet:
        """The set that a point stands for."""
        n = self.n_layers
        chosen = [i for i, skipped in enumerate(point) if skipped]
        return SkipSet(tuple(i for i in chosen if i < n), tuple(i - n for i in chosen if i >= n))

    def point(self, skips: SkipSet) -> Choices:
        """The point that stands for a set."""
        chosen = {*skips.attention, *(self.n_layers + layer for layer in skips.mlp)}
        return tuple(int(i in chosen) for i in range(2 * self.n_layers))

    @property
    def best(self) -> Choices:
        """The point that promises the most; of equals the first."""
        return max(self.values, key=lambda point: self.values[point])


def _with(point: Choices, block: int) -> Choices:
    return (*point[:block], 1, *point[block + 1 :])


@SEARCHES.register("greedy")
def greedy(tries: TriedSets) -> None:
    """Skip the block that helps most, again and again, until none does.

    What a block gained earlier says in which order blocks are worth trying now; one that is
    up to date and still ahead is taken without trying all others.
    """
    size = 2 * tries.n_layers
    # Without any skipped block each drafted token costs what it saves: a speed-up of 1.
    point, value = (0,) * size, 1.0
    gains = dict.fromkeys(range(size), float("inf"))
    current: set[int] = set()
    while len(gains) > 1:  # one block stays
        block = max(gains, key=lambda b: gains[b])
        if block in current and gains[block] > 1:
            point, value = _with(point, block), value * gains.pop(block)
            current.clear()
            continue
        stale = [b for b in gains if b not in current]
        if not stale:
            return
        block = max(stale, key=lambda b: gains[b])
        gains[block] = tries.value(_with(point, block)) / value
        current.add(block)


@SEARCHES.register("bayes")
def bayes(tries: TriedSets) -> None:
    """Try where a Gaussian process expects the most, after some sets at random."""
    size, draw = 2 * tries.n_layers, tries.generator
    default = SkipSet.default(tries.n_layers)
    tries.value(tries.point(default))
    for point in filter(_is_draft, _points(anywhere(max(3, tries.budget // 5), size, draw))):
        tries.value(point)
    while True:
        drawn = set(_points(candidates(tries.best, N_CANDIDATES, draw)))
        new = sorted(point for point in drawn - tries.values.keys() if _is_draft(point))
        if not new:
            return
        tried = np.array(list(tries.values))
        process = GaussianProcess(tried, np.array(list(tries.values.values())))
        mean, deviation = process.predict(np.array(new))
        hopes = expected_improvement(mean, deviation, tries.values[tries.best])
        tries.value(new[int(hopes.argmax())])


def _points(rows: Array) -> list[Choices]:
    return [tuple(row) for row in rows.tolist()]


def _is_draft(point: Choices) -> bool:
    """True if some blocks are skipped and some are left."""
    return 0 < sum(point) < len(point)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best set a search came upon, what it promises, and the default set beside it."""

    model: str
    n_layers: int
    skips: SkipSet
    score: SkipScore
    default: SkipSet
    default_score: SkipScore
    tried: int
    cut: int  # prompts that lost tokens to fit the model


def best_skips(
    scorer: SkipScorer, strategy: str, budget: int, seed: int, report: Report
) -> tuple[SkipSet, int]:
    """The best set within a budget of tries, and how many were made."""
    if budget < 1:
        raise ConfigError(f"budget of {budget} tries; use 1 or more")
    tries = TriedSets(scorer, budget, seed, report)
    with suppress(Exhausted):
        SEARCHES.get(strategy)(tries)
    return tries.skips(tries.best), len(tries.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(RunConfig):
    """The options of a search for blocks to skip."""

    search: str = "greedy"
    budget: int = 200
    draft_length: int = 8

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        SEARCHES.get(self.search)
        for name in ("budget", "draft_length"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} {getattr(self, name)}: use 1 or more")


def check_out(path: Path) -> None:
    """Refuse a file that an entry could not be added to, before anything is loaded for it."""
    if path.exists():
        read_skips(path)
    check_writable(path)


def run_search(config: SearchConfig, out: Path, *, report: Report) -> SearchResult:
    """Search on the examples of the tasks and add what was found to the file `out`."""
    check_out(out)
    work = Workload.read(config)
    loaded = load(config.model, context=work.context())
    items = work.encode(loaded)
    report("reading examples", 0, None)
    texts = [(item.ids, limits_of(item, loaded)) for item in items]
    scorer = SkipScorer(loaded.staged, texts, draft_length=config.draft_length)
    skips, tried = best_skips(scorer, config.search, config.budget, config.seed, report)
    default = SkipSet.default(loaded.staged.n_layers)
    save_skips(out, config.model.name, skips)
    return SearchResult(
        model=config.model.name,
        n_layers=loaded.staged.n_layers,
        skips=skips,
        score=scorer.score(skips),
        default=default,
        default_score=scorer.score(default),
        tried=tried,
        cut=sum(item.cut_tokens > 0 for item in items),
    )
