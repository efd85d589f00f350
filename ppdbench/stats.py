"""Numbers about numbers: centre, spread, intervals. Plain Python and numpy, no torch.

Wilson (1927) for proportions, widened by the design effect of Kish (1965) where examples
are clusters of tokens that go right or wrong together; a bootstrap over examples for ratios.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Pair = tuple[float, float]

Z_95 = 1.959963984540054

# Of a bootstrap: examples drawn at once, as many as a processor keeps close by, and how many draws
# of all examples, a byte each, are kept for the next one over as many examples.
BOOTSTRAP_BLOCK = 1 << 16
BOOTSTRAP_KEPT = 1 << 25


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of totals, such as how many times faster; for a single example the bounds of its
    95% interval are None.
    """

    value: float
    low: float | None
    high: float | None


# Measured on strongly clustered data: below this many examples the 95% intervals here cover
# the truth less often than they say (87% of the time at 5 examples, 91% at 8).
FEW_EXAMPLES = 16
FEW = f"Fewer than {FEW_EXAMPLES} examples: the intervals are narrower than they should be."


def grouped(rows: Iterable[T], *names: str) -> dict[tuple[Any, ...], list[T]]:
    """Rows by the values of these fields, in the order in which they come."""
    groups: dict[tuple[Any, ...], list[T]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups


def totals_by_key(pairs: Iterable[tuple[K, Pair]]) -> dict[K, Pair]:
    """Add up the pairs of numbers that have the same key, in the order in which keys come.

    So turns of a conversation, which are no examples of their own, count as one.
    """
    totals: dict[K, Pair] = {}
    for key, (part, whole) in pairs:
        parts, wholes = totals.get(key, (0.0, 0.0))
        totals[key] = parts + part, wholes + whole
    return totals


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(_some(values)) / len(values)


def median(values: Sequence[float]) -> float:
    """The middle value, or half-way between the two in the middle."""
    ordered = sorted(_some(values))
    half = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return (ordered[half - 1] + ordered[half]) / 2


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; one value has none."""
    if len(_some(values)) == 1:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def wilson(successes: float, n: float) -> tuple[float, float]:
    """Wilson's 95% interval for a proportion; `n` may be an effective, fractional size."""
    if n <= 0:
        raise ValueError(f"a proportion of {n} trials has no interval")
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    p, z2 = successes / n, Z_95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # Rounding must not push a bound past the proportion that it bounds.
    return max(0.0, min(centre - half, p)), min(1.0, max(centre + half, p))


def clustered_wilson(
    matches_per_example: Sequence[tuple[int, int]] | npt.NDArray[Any], at_most: float | None = None
) -> tuple[float, float, float]:
    """Wilson's interval for sum(matched) / sum(n), as wide as unequal examples ask for.

    Takes (matched, n) per example, returns (low, high, effective_n). Tokens of one example
    are no independent trials: the variance of the ratio estimator between examples, over
    that of independent tokens, is the design effect, and n shrinks by it. It never counts
    as less than 1. With one example, or all or none matched, there is no variance to
    estimate it from and the plain Wilson interval over all tokens is returned, which is
    then too narrow if examples do differ. Where one token was tried several times, effective_n
    is `at_most` the number of tokens.
    """
    counts = np.asarray(matches_per_example, dtype=np.float64).reshape(-1, 2)
    counts = counts[counts[:, 1] != 0]
    if not len(counts):
        raise ValueError("no example has any trials")
    if (counts[:, 0] < 0).any() or (counts[:, 0] > counts[:, 1]).any():
        raise ValueError("an example has more matches than trials, or fewer than none")
    matched, n = float(counts[:, 0].sum()), float(counts[:, 1].sum())
    effective = min(n / _design_effect(counts, matched / n), n if at_most is None else at_most)
    low, high = wilson(matched / n * effective, effective)
    return low, high, effective


def _design_effect(counts: npt.NDArray[np.float64], p: float) -> float:
    """Variance of the ratio between clusters [example, (matched, n)] over the binomial one."""
    clusters, n = len(counts), float(counts[:, 1].sum())
    if clusters < 2 or p in (0.0, 1.0):
        return 1.0
    residuals = counts[:, 0] - p * counts[:, 1]
    between = clusters / (clusters - 1) * float(residuals @ residuals) / n**2
    return max(1.0, between / (p * (1 - p) / n))


def paired_ratio(
    baseline_ms: Sequence[float], method_ms: Sequence[float], seed: int = 0, draws: int = 2000
) -> Ratio:
    """Return the method's speedup over all examples, both timed on the same ones.

    The ratio of totals, so that an example weighs what it costs.
    """
    if len(baseline_ms) != len(method_ms):
        raise ValueError(f"{len(baseline_ms)} baseline times, {len(method_ms)} of the method")
    if draws < 1:
        raise ValueError(f"draws={draws}; use 1 or more")
    times = np.asarray([_some(baseline_ms), method_ms], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("times must be finite and above 0")
    return ratio_of_totals(baseline_ms, method_ms, seed, draws)


def ratio_of_timed(times: Sequence[tuple[float, float]]) -> Ratio | None:
    """The same of pairs, (baseline, method), less examples that took no time; None without any."""
    timed = [pair for pair in times if min(pair) > 0]
    return paired_ratio([a for a, _ in timed], [b for _, b in timed]) if timed else None


def ratio_of_totals(
    parts: Sequence[float], wholes: Sequence[float], seed: int = 0, draws: int = 2000
) -> Ratio:
    """sum(parts) / sum(wholes), one of each per example, the latter above 0.

    Its 95% interval is the percentile bootstrap that draws examples, both together.
    """
    totals = np.asarray([_some(parts), wholes], dtype=np.float64)  # [2, example]
    value = float(totals[0].sum() / totals[1].sum())
    if totals.shape[1] < 2:
        return Ratio(value, None, None)
    return Ratio(value, *_interval(totals.tobytes(), seed, draws))


@lru_cache(maxsize=32)  # methods of one run share their noise floor
def _interval(packed: bytes, seed: int, draws: int) -> tuple[float, float]:
    """Return the bounds of 95% of the ratios of examples drawn from these [2, example]."""
    totals = np.frombuffer(packed).reshape(2, -1)
    low, high = np.quantile(_bootstrap(totals, seed, draws), (0.025, 0.975))
    return float(low), float(high)


def _bootstrap(totals: npt.NDArray[np.float64], seed: int, draws: int) -> npt.NDArray[np.float64]:
    """Ratios of totals over `draws` resamplings of the examples."""
    parts, wholes = _resampled(totals, seed, draws)
    ratios: npt.NDArray[np.float64] = parts / wholes
    return ratios


def _resampled(values: npt.NDArray[np.float64], seed: int, draws: int) -> npt.NDArray[np.float64]:
    """Totals [series, draw] of series [series, example], the examples drawn with replacement."""
    examples = values.shape[1]
    few = examples * draws <= BOOTSTRAP_KEPT
    blocks = _kept(examples, seed, draws) if few else _drawn(examples, seed, draws)
    totals = []
    for drawn in blocks:
        often = drawn.astype(np.float64)
        # One after the other, so that equal series have equal totals, to the last bit.
        totals.append([often @ series for series in values])
    return np.concatenate(totals, axis=1)


@lru_cache(maxsize=2)
def _kept(examples: int, seed: int, draws: int) -> list[npt.NDArray[np.uint8]]:
    """Drawing takes most of the time, and every ratio of a run is over the same examples."""
    return list(_drawn(examples, seed, draws))


def _drawn(examples: int, seed: int, draws: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Blocks [draw, example]: how often each example is drawn."""
    generator, block = np.random.default_rng(seed), max(1, BOOTSTRAP_BLOCK // examples)
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        chosen = generator.integers(examples, size=(rows, examples))
        chosen += examples * np.arange(rows)[:, None]
        often = np.bincount(chosen.ravel(), minlength=rows * examples)
        # A byte is enough: about one of each is drawn, and of few examples no more than there are.
        yield often.astype(np.uint8).reshape(rows, examples)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a rate; the bounds of its 95% interval are None for a single example."""

    value: float
    low: float | None
    high: float | None


def paired_change(
    before: Sequence[tuple[float, float]],
    after: Sequence[tuple[float, float]],
    seed: int = 0,
    draws: int = 2000,
) -> Change:
    """The change of a ratio of totals, sum(part) / sum(whole), over the same examples.

    Takes (part, whole) per example of both runs. The interval is the percentile bootstrap that
    draws examples, both runs together: a change that a few examples make has one around 0.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} examples before, {len(after)} after")
    if any(sum(whole for _, whole in run) <= 0 for run in (before, after)):
        raise ValueError("a rate of nothing has no change")
    # Parts before, wholes before, parts after, wholes after: [4, example]
    counts = np.concatenate([np.asarray(run, dtype=np.float64).T for run in (before, after)])
    value = float(_changes(counts.sum(1, keepdims=True))[0])
    if counts.shape[1] < 2:
        return Change(value, None, None)
    found = _changes(_resampled(counts, seed, draws))
    low, high = np.quantile(found, (0.025, 0.975))
    return Change(value, float(low), float(high))


def _changes(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the changes of totals [4, draw]; draws that hold nothing of a run are left out."""
    parts, wholes = totals[::2], totals[1::2]  # [run, draw] each
    drawn = (wholes > 0).all(0)
    before, after = parts[:, drawn] / wholes[:, drawn]
    changes: npt.NDArray[np.float64] = after - before
    return changes


def _some(values: Sequence[float]) -> Sequence[float]:
    if not len(values):
        raise ValueError("no values")
    return values


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that chi-square of so many degrees of freedom reaches the statistic."""
    if freedom < 1 or statistic < 0:
        raise ValueError(f"chi-square of {freedom} degrees of freedom reaching {statistic}")
    a, x = freedom / 2, statistic / 2
    if x == 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - scale * total)
    # The continued fraction of the upper incomplete gamma function, from its front (Lentz).
    b = x + 1 - a
    c, d = 1e300, 1 / b
    value = d
    for i in range(1, 10_000):
        b += 2
        d = 1 / (b - i * (i - a) * d)
        c = b - i * (i - a) / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * value


def g_test(counts: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """p-values of counts [draw, cell] against probabilities [cell], all of them above 0.

    Twice the log-likelihood ratio, with the correction of Williams (1976) for small samples.
    """
    cells, n = len(probabilities), counts.sum(-1)
    if cells < 2:
        return np.ones(len(counts))
    expected = n[:, None] * probabilities
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    correction = 1 + ((1 / probabilities).sum() - 1) / (6 * n * (cells - 1))
    statistics = np.maximum(0.0, 2 * terms.sum(-1) / correction)
    return np.array([chi_square_tail(float(value), cells - 1) for value in statistics])


def two_sided(deviations: float) -> float:
    """The probability of a normal variable at least so many standard deviations off."""
    return math.erfc(abs(deviations) / math.sqrt(2))


def smallest_of_holm(p_values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The smallest of p-values [draw, test] after Holm's (1979) correction for their number."""
    smallest: npt.NDArray[np.float64] = np.minimum(1.0, p_values.min(-1) * p_values.shape[-1])
    return smallest


@dataclass(frozen=True, slots=True)
class Crossing:
    """The size at which a ratio that depends on it falls below 1, and its 95% interval.

    0 stands for below 1 from the smallest on that was measured, infinity for nowhere below 1.
    """

    value: float
    low: float
    high: float


def crossing(
    sizes: Sequence[int],
    parts: Sequence[Sequence[float]],
    wholes: Sequence[Sequence[float]],
    seed: int = 0,
    draws: int = 2000,
) -> Crossing:
    """The first crossing of sum(parts) / sum(wholes) [size, example], on the line between sizes.

    The axis of sizes is logarithmic. Its interval is the percentile bootstrap that draws
    examples, the same ones for every size.
    """
    totals = np.asarray([*parts, *wholes], dtype=np.float64)  # [2 * size, example]
    value = float(_crossings(sizes, totals.sum(1, keepdims=True))[0])
    low, high = _ends(_crossings(sizes, _resampled(totals, seed, draws)))
    return Crossing(value, low, high)


def _ends(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The bounds of 95% of values, some of them infinite, which nothing can be between."""
    low, high = np.quantile(values, (0.025, 0.975), method="closest_observation")
    return float(low), float(high)


def _crossings(sizes: Sequence[int], totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The first crossing of each draw of totals [2 * size, draw], as `Crossing` has it."""
    heights = totals[: len(sizes)] / totals[len(sizes) :] - 1  # [size, draw]
    places = np.log(np.asarray(sizes, dtype=np.float64))
    found = np.full(heights.shape[1], math.inf)
    for at in reversed(range(1, len(sizes))):
        before, after = heights[at - 1], heights[at]
        falls = (before >= 0) & (after < 0)
        share = np.divide(before, before - after, out=np.zeros_like(before), where=falls)
        crossed = np.exp(places[at - 1] + share * (places[at] - places[at - 1]))
        found = np.where(falls, crossed, found)
    return np.where(heights[0] < 0, 0.0, found)
