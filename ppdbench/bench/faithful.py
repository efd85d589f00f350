"""Faithfulness: drawn outputs against the exact probabilities that the model gives them.

At each prefix that many outputs share, how often each token followed is compared with the
model's own distribution there by a G-test; tokens that are too rare to count are taken
together. Draws after rarer prefixes are compared by the rank of the token, summed over all
prefixes of that length. These p-values are corrected by Holm's method. Two more tests are over
all draws at once, as no single place sees a small deviation that is everywhere: one by rank, and
one that only counts how often the likeliest token was drawn, which is what drafts change first.
They and the others each get a third of the level.

What the test could have seen is simulated: the same numbers of draws from distributions of
which a part was moved from the likeliest token to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ppdbench.stats import g_test, smallest_of_holm, two_sided

Floats = npt.NDArray[np.float64]
Prefix = tuple[int, ...]
Verdict = Literal["faithful", "unfaithful", "undecided"]

ALARM = 0.01  # p-values below it refuse
DOUBTFUL = 1e-6  # down to it chance may be the reason, and new draws decide
LEAST = 10  # draws expected in a cell
VISITS = 100  # outputs that share a prefix, for a test of its own
STRAY = 0.002  # part of draws with no probability that rounding at a cut may explain
POWERFUL = 0.5  # probability to have found a deviation, below which nothing is decided
MOVED = 0.02  # total variation that the power is given for
SIMULATED = 200
GRID = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0)

# The first ranks of classes; the last class holds all that follow, and one more what was taken
# together at a prefix of its own.
RANKS = (0, 1, 3, 7, 15, 31, 63)
TOGETHER = len(RANKS)


@dataclass(frozen=True)
class Group:
    """Draws that are compared with one distribution, cell by cell.

    `classes` says which ranks a cell is of; `tokens` which token it is, -1 for several.
    """

    name: str
    counts: Floats
    probabilities: Floats
    classes: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]

    @property
    def n(self) -> int:
        """The number of draws."""
        return int(self.counts.sum())


@dataclass(frozen=True)
class Deviation:
    """The token that was drawn most unlike what it should be, in standard deviations."""

    where: str
    token: int
    drawn: float
    expected: float
    deviations: float


@dataclass(frozen=True)
class Faithfulness:
    """The result of a test, without its controls."""

    p_value: float
    total_variation: float
    low: float
    high: float
    power: float
    draws: int
    stray: int
    largest: Deviation | None


@dataclass
class DrawnOutputs:
    """Collects outputs of one method, prompt by prompt, with the conditionals of the model."""

    groups: list[Group] = field(default_factory=list)
    stray: int = 0

    def add(
        self,
        prompt: str,
        following: Mapping[Prefix, Counter[int]],
        conditionals: Iterable[tuple[Prefix, Floats]],
    ) -> None:
        """Add what followed each prefix of a prompt's outputs; rows of p come one at a time."""
        rare: dict[int, tuple[Floats, Floats]] = {}
        for prefix, row in conditionals:
            seen = following[prefix]
            p = row / row.sum()
            self.stray += sum(n for token, n in seen.items() if p[token] == 0)
            if seen.total() >= VISITS:
                self.groups.append(_of_prefix(f"{prompt} after {list(prefix)}", seen, p))
                continue
            counts, expected = rare.setdefault(
                len(prefix), (np.zeros(len(RANKS)), np.zeros(len(RANKS)))
            )
            found, likely = _by_rank(seen, p)
            counts += found
            expected += seen.total() * likely
        for position, (counts, expected) in rare.items():
            name = f"{prompt}, output position {1 + position} after rare beginnings"
            classes = np.arange(len(RANKS))
            self.groups.append(
                _pooled(name, counts, expected / expected.sum(), classes, np.full(len(RANKS), -1))
            )

    @property
    def testable(self) -> list[Group]:
        """The groups of more than one cell."""
        return [group for group in self.groups if len(group.counts) > 1]

    def p_value(self) -> float:
        """The probability of draws as unlikely as these, or more, if all is as it should be."""
        groups, draws = self.testable, sum(group.n for group in self.groups)
        if self.stray > max(2, STRAY * draws):
            return 0.0
        return float(_p_values(groups, [g.counts[None] for g in groups])[0]) if groups else 1.0

    def judge(self, seed: int = 0) -> Faithfulness:
        """Test all that was added."""
        groups, draws = self.testable, sum(group.n for group in self.groups)
        if not groups:
            return Faithfulness(1.0, 0.0, 0.0, 1.0, 0.0, draws, self.stray, None)
        p_value, counts = self.p_value(), [group.counts[None] for group in groups]
        variation = float(_variation(groups, counts)[0])
        generator = np.random.default_rng(seed)
        spread, power = [], 0.0
        for moved in GRID:
            made = [_simulated(group, moved, generator) for group in groups]
            spread.append(np.quantile(_variation(groups, made), (0.025, 0.5, 0.975)))
            if moved == MOVED:
                power = float((_p_values(groups, made) < ALARM).mean())
        low, middle, high = (_inverted(variation, at) for at in zip(*spread, strict=True))
        return Faithfulness(p_value, middle, high, low, power, draws, self.stray, _largest(groups))


def _by_rank(seen: Counter[int], p: Floats) -> tuple[Floats, Floats]:
    """Counts and probabilities of tokens by the class of their rank."""
    n = min(RANKS[-1], len(p))
    first = np.argpartition(-p, n - 1)[:n]
    first = first[np.argsort(-p[first], kind="stable")]
    starts = [rank for rank in RANKS if rank < n]
    likely = np.zeros(len(RANKS))
    likely[: len(starts)] = np.add.reduceat(p[first], starts)
    likely[-1] += max(0.0, 1 - float(p[first].sum()))
    rank = {int(token): place for place, token in enumerate(first)}
    counts = np.zeros(len(RANKS))
    for token, often in seen.items():
        counts[np.searchsorted(RANKS, rank.get(token, RANKS[-1]), side="right") - 1] += often
    return counts, likely


def _of_prefix(name: str, seen: Counter[int], p: Floats) -> Group:
    """A cell for each token that is expected often enough, likeliest first, and one for others."""
    kept = np.flatnonzero(p * seen.total() >= LEAST)
    kept = kept[np.argsort(-p[kept], kind="stable")]
    counts = np.array([seen[int(token)] for token in kept] + [0.0])
    counts[-1] = seen.total() - counts.sum()
    probabilities = np.append(p[kept], max(0.0, 1 - float(p[kept].sum())))
    classes = np.searchsorted(RANKS, np.arange(len(kept)), side="right") - 1
    return _pooled(name, counts, probabilities, np.append(classes, TOGETHER), np.append(kept, -1))


def _pooled(
    name: str,
    counts: Floats,
    probabilities: Floats,
    classes: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
) -> Group:
    """A group of which cells that expect too few draws are taken together, the last ones first."""
    counts, probabilities = counts.copy(), probabilities.copy()
    classes, tokens = classes.copy(), tokens.copy()
    n, end = counts.sum(), len(counts)
    while end > 1 and n * probabilities[end - 1] < LEAST:
        end -= 1
        counts[end - 1] += counts[end]
        probabilities[end - 1] += probabilities[end]
        classes[end - 1], tokens[end - 1] = TOGETHER, -1
    left = probabilities[:end] / probabilities[:end].sum()
    return Group(name, counts[:end], left, classes[:end], tokens[:end])


def _p_values(groups: Sequence[Group], counts: Sequence[Floats]) -> Floats:
    """Compute a p-value for each of several draws [draw, cell] of all groups."""
    each = np.stack(
        [g_test(c, g.probabilities) for g, c in zip(groups, counts, strict=True)], axis=-1
    )
    tests = [smallest_of_holm(each), _by_rank_together(groups, counts), _likeliest(groups, counts)]
    p_values: Floats = np.minimum(1.0, len(tests) * np.min(tests, axis=0))
    return p_values


def _by_rank_together(groups: Sequence[Group], counts: Sequence[Floats]) -> Floats:
    """A test of how often tokens of each class of ranks were drawn, all groups together."""
    seen = np.zeros((len(counts[0]), TOGETHER + 1))
    expected = np.zeros(TOGETHER + 1)
    for group, drawn in zip(groups, counts, strict=True):
        np.add.at(seen.T, group.classes, drawn.T)
        np.add.at(expected, group.classes, group.n * group.probabilities)
    often = np.flatnonzero(expected >= LEAST)
    return g_test(seen[:, often], expected[often] / expected[often].sum())


def _likeliest(groups: Sequence[Group], counts: Sequence[Floats]) -> Floats:
    """A test of how often the likeliest tokens were drawn, all groups together.

    What each group adds to the count varies by that group's own probability; so it sees much
    smaller deviations in one direction than a test of many cells.
    """
    seen = np.zeros(len(counts[0]))
    expected = variance = 0.0
    for group, drawn in zip(groups, counts, strict=True):
        first = group.classes == 0
        p = float(group.probabilities[first].sum())
        seen += drawn[:, first].sum(-1)
        expected, variance = expected + group.n * p, variance + group.n * p * (1 - p)
    if variance < LEAST:
        return np.ones(len(seen))
    return np.array([two_sided(float(far)) for far in (seen - expected) / np.sqrt(variance)])


def _variation(groups: Sequence[Group], counts: Sequence[Floats]) -> Floats:
    """The mean total variation of draws [draw, cell] from what groups expect."""
    apart = [
        np.abs(c - g.n * g.probabilities).sum(-1) / 2 for g, c in zip(groups, counts, strict=True)
    ]
    variation: Floats = np.sum(apart, axis=0) / sum(group.n for group in groups)
    return variation


def _simulated(group: Group, moved: float, generator: np.random.Generator) -> Floats:
    """Draws [draw, cell] from a distribution of which a part left the likeliest token."""
    p = group.probabilities.copy()
    first = int(p.argmax() if group.classes[0] else 0)
    part = min(moved, float(p[first]))
    others = 1 - p[first]
    p *= 1 + part / others
    p[first] = group.probabilities[first] - part
    p = np.maximum(p, 0.0)
    made: Floats = generator.multinomial(group.n, p / p.sum(), SIMULATED).astype(float)
    return made


def _inverted(variation: float, at: Sequence[float]) -> float:
    """The part that has to be moved for a quantile, known on the grid, to be what was seen."""
    return float(np.interp(variation, np.maximum.accumulate(np.asarray(at)), GRID))


def _largest(groups: Sequence[Group]) -> Deviation | None:
    """The cell of one token that lies farthest from what was expected."""
    found: list[Deviation] = []
    for group in groups:
        due = group.n * group.probabilities
        off = np.abs(group.counts - due) / np.sqrt(due * np.maximum(1 - group.probabilities, 1e-9))
        for cell in np.flatnonzero(group.tokens >= 0):
            drawn, expected = group.counts[cell] / group.n, group.probabilities[cell]
            token, far = int(group.tokens[cell]), float(off[cell])
            found.append(Deviation(group.name, token, float(drawn), float(expected), far))
    return max(found, key=lambda deviation: deviation.deviations, default=None)


def verdict(found: Faithfulness, controls: Sequence[Faithfulness]) -> Verdict:
    """Refuse what deviates; decide nothing where a wrong rule was not refused, or none tried."""
    if found.p_value < ALARM:
        return "unfaithful"
    weak = not controls or any(control.p_value >= ALARM for control in controls)
    return "undecided" if weak or found.power < POWERFUL else "faithful"


def following(outputs: Iterable[Sequence[int]]) -> dict[Prefix, Counter[int]]:
    """Count the tokens that followed each beginning of outputs."""
    found: dict[Prefix, Counter[int]] = {}
    for output in outputs:
        for place, token in enumerate(output):
            found.setdefault(tuple(output[:place]), Counter())[token] += 1
    return found


def to_json(found: Faithfulness, controls: Mapping[str, Faithfulness]) -> dict[str, Any]:
    """The fields that scripts read."""
    largest = found.largest
    return {
        "faithful": verdict(found, list(controls.values())),
        "p_value": found.p_value,
        "total_variation": found.total_variation,
        "total_variation_low": found.low,
        "total_variation_high": found.high,
        "power_at_0_02": found.power,
        "draws": found.draws,
        "impossible": found.stray,
        "largest_deviation": None
        if largest is None
        else {
            "where": largest.where,
            "token": largest.token,
            "drawn": largest.drawn,
            "expected": largest.expected,
            "deviations": largest.deviations,
        },
        "controls": [
            {"name": name, "p_value": control.p_value, "draws": control.draws}
            for name, control in controls.items()
        ],
    }
