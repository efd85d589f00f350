"""The statistical test of faithfulness: against known tails, true draws and wrong ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ppdbench.bench.faithful import (
    ALARM,
    DrawnOutputs,
    Faithfulness,
    following,
    to_json,
    verdict,
)
from ppdbench.stats import chi_square_tail, g_test, smallest_of_holm, two_sided

VOCAB = 300


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 200])
def test_tails_of_chi_square_are_those_of_the_incomplete_gamma_function(freedom: int) -> None:
    for statistic in (0.01, 0.5, freedom / 2, freedom, 2.0 * freedom, 4.0 * freedom + 20):
        exact = torch.special.gammaincc(
            torch.tensor(freedom / 2, dtype=torch.float64),
            torch.tensor(statistic / 2, dtype=torch.float64),
        )
        assert chi_square_tail(statistic, freedom) == pytest.approx(float(exact), rel=1e-9)
    assert chi_square_tail(0, freedom) == 1


def test_a_g_test_worked_out_by_hand() -> None:
    """Sokal and Rohlf's way: G = 2 sum O ln(O/E) of 60 and 40 where 50 each are due."""
    raw = 2 * (60 * np.log(1.2) + 40 * np.log(0.8))
    corrected = raw / (1 + 3 / 600)
    found = g_test(np.array([[60, 40], [50, 50]]), np.array([0.5, 0.5]))
    assert found.tolist() == pytest.approx([chi_square_tail(corrected, 1), 1.0])
    assert smallest_of_holm(np.array([[0.01, 0.5, 0.02]])).tolist() == pytest.approx([0.03])


def test_two_sided_tails_of_the_normal_distribution() -> None:
    for deviations in (0.0, 0.5, -1.959964, 3.0, 6.0):
        square = torch.tensor(deviations**2 / 2, dtype=torch.float64)
        exact = float(torch.special.gammaincc(torch.tensor(0.5, dtype=torch.float64), square))
        assert two_sided(deviations) == pytest.approx(exact, rel=1e-9)


def conditional(prefix: tuple[int, ...], temperature: float = 1.0) -> np.ndarray:
    """Made-up probabilities after a prefix."""
    seed = sum((token + 1) * 31**place for place, token in enumerate(prefix, 1))
    logits = np.random.default_rng(seed).normal(0, 2.5, VOCAB) / temperature
    p = np.exp(logits - logits.max())
    return p / p.sum()


def drawn(
    n: int, seed: int, source: Callable[[tuple[int, ...]], np.ndarray] = conditional
) -> list[tuple[int, ...]]:
    generator = np.random.default_rng(seed)
    kept: dict[tuple[int, ...], np.ndarray] = {}
    outputs = []
    for _ in range(n):
        output: tuple[int, ...] = ()
        for _ in range(3):
            if output not in kept:
                kept[output] = source(output).cumsum()
            place = np.searchsorted(kept[output], generator.random())
            output = (*output, min(int(place), VOCAB - 1))
        outputs.append(output)
    return outputs


def judged(outputs: list[tuple[int, ...]]) -> Faithfulness:
    comparison, after = DrawnOutputs(), following(outputs)
    comparison.add("example 1", after, ((prefix, conditional(prefix)) for prefix in after))
    return comparison.judge()


def test_what_followed_each_beginning_is_counted() -> None:
    assert following([(1, 2), (1, 3), (1, 2)]) == {
        (): Counter({1: 3}),
        (1,): Counter({2: 2, 3: 1}),
    }


def test_true_draws_are_not_refused_and_their_interval_holds_zero() -> None:
    for seed in range(5):
        found = judged(drawn(1000, seed))
        assert found.p_value > ALARM
        assert found.low == 0
        assert found.high < 0.1
        assert found.draws == 3000


def test_draws_at_another_temperature_are_refused() -> None:
    found = judged(drawn(1000, 1, lambda prefix: conditional(prefix, 1.3)))
    assert found.p_value < 1e-6
    assert found.low > 0
    assert found.low <= found.total_variation <= found.high
    assert found.largest is not None


def test_more_draws_have_more_power() -> None:
    few, many = judged(drawn(150, 2)), judged(drawn(4000, 2))
    assert few.power < many.power
    assert many.power > 0.5


def test_a_little_less_of_the_likeliest_token_everywhere_is_refused() -> None:
    """No place of its own sees it: 3000 outputs are enough to find a total variation of 0.03."""

    def moved(prefix: tuple[int, ...]) -> np.ndarray:
        p = conditional(prefix)
        first = p.argmax()
        part = min(0.03, p[first])
        p = p * (1 + part / (1 - p[first]))
        p[first] = conditional(prefix)[first] - part
        return p

    assert judged(drawn(3000, 6, moved)).p_value < ALARM
    assert judged(drawn(3000, 6)).power > 0.9


def test_draws_that_are_impossible_are_refused() -> None:
    outputs = drawn(300, 3)
    comparison, after = DrawnOutputs(), following(outputs)

    def cut(prefix: tuple[int, ...]) -> np.ndarray:
        p = conditional(prefix)
        return np.where(p < 0.002, 0, p)

    comparison.add("example 1", after, ((prefix, cut(prefix)) for prefix in after))
    found = comparison.judge()
    assert found.stray > 5
    assert found.p_value == 0


def test_nothing_is_decided_where_a_wrong_rule_would_pass() -> None:
    fine, wrong = judged(drawn(4000, 4)), judged(drawn(500, 4, lambda p: conditional(p, 1.5)))
    assert verdict(fine, [wrong]) == "faithful"
    assert verdict(fine, [wrong, fine]) == "undecided"
    assert verdict(wrong, [wrong]) == "unfaithful"
    assert verdict(judged(drawn(20, 4)), [wrong]) == "undecided"
    content = to_json(fine, {"keeps all": wrong})
    assert content["faithful"] == "faithful"
    assert content["controls"][0]["p_value"] < ALARM
