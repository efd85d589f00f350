"""Hand-computed numbers, and intervals that cover as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from ppdbench import stats
from ppdbench.stats import (
    Ratio,
    clustered_wilson,
    deviation,
    grouped,
    mean,
    median,
    paired_change,
    paired_ratio,
    wilson,
)


def test_rows_are_grouped_in_the_order_in_which_they_come() -> None:
    rows = [Ratio(1.0, 2.0, 3.0), Ratio(0.0, 2.0, 3.0), Ratio(1.0, 2.0, 5.0)]
    assert grouped(rows, "value") == {(1.0,): [rows[0], rows[2]], (0.0,): [rows[1]]}
    assert list(grouped(rows, "low", "high")) == [(2.0, 3.0), (2.0, 5.0)]
    assert grouped([], "value") == {}


def test_centre_and_spread_by_hand() -> None:
    values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]
    assert mean(values) == 5.0
    assert median(values) == 4.5
    assert median([3, 1, 2]) == 2.0
    assert deviation(values) == pytest.approx((32 / 7) ** 0.5)


def test_one_value_has_no_deviation() -> None:
    assert deviation([3.0]) is None
    assert (mean([3.0]), median([3.0])) == (3.0, 3.0)


@pytest.mark.parametrize("statistic", [mean, median, deviation])
def test_no_values_are_refused(statistic: object) -> None:
    with pytest.raises(ValueError, match="no values"):
        statistic([])  # type: ignore[operator]


def test_wilson_by_hand() -> None:
    # p = 0.8, n = 10, z^2 = 3.841459: centre (0.8 + 0.192073) / 1.384146 = 0.716740,
    # half 1.959964 * sqrt(0.016 + 0.009604) / 1.384146 = 0.226577
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.490162, 0.943318), abs=1e-6)


def test_wilson_at_the_ends_stays_inside_and_keeps_width() -> None:
    # 0 of n: high = z^2 / (n + z^2)
    assert wilson(0, 10) == pytest.approx((0.0, 3.841459 / 13.841459), abs=1e-6)
    assert wilson(10, 10) == pytest.approx((10 / 13.841459, 1.0), abs=1e-6)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_is_no_proportion(successes: float, n: float) -> None:
    with pytest.raises(ValueError, match="trials"):
        wilson(successes, n)


def test_clustered_wilson_by_hand() -> None:
    # p = 1/2, residuals +4 and -4: between = 2/1 * 32 / 400 = 0.16, binomial = 0.25 / 20
    low, high, effective = clustered_wilson([(9, 10), (1, 10)])
    assert effective == pytest.approx(20 / 12.8)
    assert (low, high) == pytest.approx(wilson(0.5 * effective, effective))


def test_examples_that_are_all_or_nothing_count_as_single_trials() -> None:
    # Each example a coin thrown once and copied 10 times; k/(k-1) makes 40 into 39.
    _, _, effective = clustered_wilson([(10, 10)] * 20 + [(0, 10)] * 20)
    assert effective == pytest.approx(39)


def test_examples_more_equal_than_chance_do_not_narrow_the_interval() -> None:
    low, high, effective = clustered_wilson([(5, 10)] * 4)
    assert effective == 40
    assert (low, high) == pytest.approx(wilson(20, 40))


@pytest.mark.parametrize("pairs", [[(3, 10)], [(10, 10), (20, 20)], [(0, 10), (0, 20)]])
def test_without_variance_between_examples_it_is_plain_wilson(pairs: list[tuple[int, int]]) -> None:
    matched, n = (sum(column) for column in zip(*pairs, strict=True))
    assert clustered_wilson(pairs) == pytest.approx((*wilson(matched, n), n))


def test_examples_without_trials_do_not_count() -> None:
    assert clustered_wilson([(3, 10), (0, 0), (8, 10)]) == clustered_wilson([(3, 10), (8, 10)])
    with pytest.raises(ValueError, match="no example has any trials"):
        clustered_wilson([(0, 0)])


def test_more_matches_than_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="more matches"):
        clustered_wilson([(3, 2)])


def test_clustered_wilson_covers_the_truth_where_plain_wilson_does_not() -> None:
    generator = np.random.default_rng(1)
    truth, clustered, plain, rounds = 0.7, 0, 0, 600
    for _ in range(rounds):
        each = generator.beta(2.1, 0.9, size=40)  # mean 0.7, far apart
        n = generator.integers(10, 30, size=40)
        matched = generator.binomial(n, each)
        low, high, _ = clustered_wilson([(int(m), int(t)) for m, t in zip(matched, n, strict=True)])
        clustered += low <= truth <= high
        low, high = wilson(int(matched.sum()), int(n.sum()))
        plain += low <= truth <= high
    assert 0.92 <= clustered / rounds <= 0.98
    assert plain / rounds < 0.75


def test_ratio_is_that_of_totals() -> None:
    ratio = paired_ratio([10.0, 30.0], [5.0, 5.0])
    assert ratio.value == 4.0  # not the mean of 2 and 6 weighted otherwise
    assert paired_ratio([30.0, 10.0], [10.0, 10.0]).value == 2.0
    assert (ratio.low, ratio.high) == (2.0, 6.0)


def test_one_example_has_no_interval() -> None:
    ratio = paired_ratio([30.0], [10.0])
    assert (ratio.value, ratio.low, ratio.high) == (3.0, None, None)


def test_equal_ratios_have_an_interval_without_width() -> None:
    ratio = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_seed_decides_the_interval() -> None:
    baseline, method = [3.0, 5.0, 9.0, 4.0], [2.0, 2.5, 7.0, 1.0]
    first = paired_ratio(baseline, method, seed=3)
    assert first == paired_ratio(baseline, method, seed=3)
    assert first != paired_ratio(baseline, method, seed=4, draws=50)


def test_resampling_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, method = [3.0, 5.0, 9.0, 4.0], [2.0, 2.5, 7.0, 1.0]
    whole = paired_ratio(baseline, method)
    monkeypatch.setattr("ppdbench.stats.BOOTSTRAP_BLOCK", 40)
    assert paired_ratio(baseline, method) == whole


@pytest.mark.parametrize(
    ("baseline", "method"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0]), ([float("nan")], [1.0])]
)
def test_times_that_make_no_ratio_are_refused(baseline: list[float], method: list[float]) -> None:
    with pytest.raises(ValueError, match=r"times|values"):
        paired_ratio(baseline, method)


def test_bootstrap_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(2)
    hits, rounds = 0, 300
    for _ in range(rounds):
        method = generator.gamma(4.0, 5.0, size=40)
        baseline = method * generator.gamma(16.0, 2.0 / 16.0, size=40)  # twice as slow on average
        ratio = paired_ratio(baseline.tolist(), method.tolist(), draws=400)
        assert ratio.low is not None and ratio.high is not None
        hits += ratio.low <= 2.0 <= ratio.high
    assert 0.89 <= hits / rounds <= 0.98


def test_a_change_of_a_rate_pairs_the_examples_of_both_runs() -> None:
    before = [(n, 10) for n in (1, 3, 5, 7, 9)]
    after = [(n + 1, 10) for n, _ in before]
    change = paired_change(before, after)
    # Unequal as the examples are, each gained a tenth.
    assert (change.value, change.low, change.high) == pytest.approx((0.1, 0.1, 0.1))


def test_a_change_that_one_of_many_examples_made_has_an_interval_around_none() -> None:
    before = [(5, 10)] * 8
    change = paired_change(before, [(0, 10), *before[1:]])
    assert change.value == pytest.approx(-5 / 80)
    assert change.low is not None
    assert change.high is not None
    assert change.low < -0.1
    assert change.high == pytest.approx(0)


def test_a_change_weighs_examples_by_what_they_count() -> None:
    change = paired_change([(0, 1), (9, 9)], [(1, 1), (0, 9)])
    assert change.value == pytest.approx(0.1 - 0.9)


def test_a_change_of_one_example_has_no_interval() -> None:
    change = paired_change([(1, 2)], [(2, 2)])
    assert (change.value, change.low, change.high) == (0.5, None, None)


def test_draws_without_a_single_trial_are_left_out() -> None:
    change = paired_change([(1, 2), (0, 0), (0, 0)], [(2, 2), (0, 0), (0, 0)])
    assert (change.low, change.high) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([(1, 2)], []), ([(0, 0)], [(1, 2)]), ([(1, 2)], [(0, 0)])]
)
def test_a_change_of_nothing_or_of_unequal_runs_is_refused(
    before: list[tuple[float, float]], after: list[tuple[float, float]]
) -> None:
    with pytest.raises(ValueError, match=r"examples before|rate of nothing"):
        paired_change(before, after)


def test_draws_that_are_too_many_to_keep_are_the_same_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [(n % 7, 10) for n in range(1, 60)]
    after = [(n % 5, 10) for n in range(1, 60)]
    kept = paired_change(before, after)
    monkeypatch.setattr(stats, "BOOTSTRAP_KEPT", 0)
    monkeypatch.setattr(stats, "BOOTSTRAP_BLOCK", 100)
    assert paired_change(before, after) == kept


def test_a_run_beside_itself_has_no_change_to_the_last_bit() -> None:
    times = [(1 / n, 0.1 * n) for n in range(1, 400)]
    assert paired_change(times, times) == stats.Change(0, 0, 0)
