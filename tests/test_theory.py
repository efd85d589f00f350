"""The theory against the paper's numbers, hand-worked cases and a simulation."""

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
import yaml

from ppdbench import theory
from ppdbench.errors import ConfigError
from ppdbench.files.resources import folder


def paper(name: str) -> dict[str, Any]:
    return yaml.safe_load((folder("papers") / name).read_text(encoding="utf-8"))


FIGURES = paper("ppd_figures.yaml")
CAPTION_SLIP = 3.2  # the caption's "3.2 times", which computes to 3.279


def digits(value: float) -> int:
    """Digits after the point, as printed."""
    return -Decimal(repr(value)).as_tuple().exponent


def point(task: str, k: int, trained: bool) -> theory.FigurePoint:
    points = theory.figure_points(theory.paper_match_rates(20))
    (found,) = [p for p in points if (p.task, p.k, p.trained) == (task, k, trained)]
    return found


def quantity(row: dict[str, Any]) -> float:
    found = point(row["task"], row["k"], row["trained"])
    return {
        "normalized_latency_per_token": found.latency_per_token,
        "latency_reduction": 1 - found.latency_per_token,
        "avg_compute_per_time_unit": found.compute_per_time_unit,
    }[row["quantity"]]


@pytest.mark.parametrize("row", [r for r in FIGURES["rows"] if r["value"] != CAPTION_SLIP])
def test_quoted_numbers_are_reproduced_to_the_printed_digit(row: dict[str, Any]) -> None:
    assert round(quantity(row), digits(row["value"])) == row["value"]


def test_the_captions_slip_is_what_the_table_says_it_is() -> None:
    (row,) = [r for r in FIGURES["rows"] if r["value"] == CAPTION_SLIP]
    assert round(quantity(row), 3) == 3.279
    assert any("3.2 times" in note and "3.279" in note for note in FIGURES["notes"])


@pytest.mark.parametrize("row", FIGURES["derived_rows"])
def test_all_curve_points_follow_from_table_2(row: dict[str, Any]) -> None:
    found = point(row["task"], row["k"], row["trained"])
    assert found.match_rate == row["match_rate"]
    assert round(found.latency_per_token, 6) == row["normalized_latency_per_token"]
    assert round(found.compute_per_time_unit, 6) == row["avg_compute_per_time_unit"]
    assert round(found.compute_per_token, 6) == row["avg_compute_per_token_normalized"]


def test_figures_have_eighteen_points() -> None:
    assert len(FIGURES["derived_rows"]) == len(theory.figure_points(theory.paper_match_rates()))


def test_table_3_predictions_are_those_of_its_notes() -> None:
    rows = [r for r in paper("ppd_table3.yaml")["rows"] if r["method"] == "ppd"]
    speedups = {
        (r["task"], r["k"]): round(1 / theory.latency_per_token(40, 20, r["match_rate"]), 3)
        for r in rows
    }
    assert speedups == {
        ("cnn_dm", 1): 1.148,
        ("cnn_dm", 3): 1.266,
        ("squad", 1): 1.183,
        ("squad", 3): 1.309,
    }
    notes = " ".join(paper("ppd_table3.yaml")["notes"])
    assert "1.148, 1.266, 1.183, 1.309" in notes


def test_half_depth_gives_the_papers_equations() -> None:
    d, k, p = 40, 3, 0.4
    assert theory.latency_per_token(d, 20, p) == pytest.approx(1 - p / 2)
    assert theory.compute_per_time_unit(d, 20, k, p) == pytest.approx((k + 2 - p) / (2 - p))
    assert theory.compute_per_token(d, 20, k, p) == pytest.approx((2 + k - p) / 2)


def test_later_exit_worked_by_hand() -> None:
    # 4 layers, exit after 3, 3 tokens: 4 for the first, then 3 on a match and 4 on a miss.
    found = theory.tradeoff(4, 3, k=2, p=0.5, tokens=3)
    assert found.expected_latency == 4 + 3.5 + 3.5
    assert found.expected_compute == 11 + 2 * 1 * 3
    assert found.latency_per_token == pytest.approx(3.5 / 4)
    assert found.compute_per_token == pytest.approx(5.5 / 4)
    assert found.compute_per_time_unit == pytest.approx(5.5 / 3.5)
    assert found.speedup == pytest.approx(12 / 11)


@pytest.mark.parametrize("tokens", [1, 2, 128])
@pytest.mark.parametrize("p", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("exit_after", [20, 33, 39])
def test_speedup_is_greedy_time_over_expected_time(exit_after: int, p: float, tokens: int) -> None:
    found = theory.tradeoff(40, exit_after, k=3, p=p, tokens=tokens)
    assert found.speedup == pytest.approx(40 * tokens / found.expected_latency, rel=1e-12)


def test_one_token_or_no_match_is_never_faster_than_greedy() -> None:
    assert theory.tradeoff(40, 20, k=1, p=1.0, tokens=1).speedup == pytest.approx(1)
    assert theory.tradeoff(40, 20, k=1, p=0.0, tokens=99).speedup == pytest.approx(1)


def test_long_outputs_approach_the_limits() -> None:
    tokens = 10**9
    found = theory.tradeoff(32, 20, k=3, p=0.7, tokens=tokens)
    greedy = 32 * tokens
    assert found.expected_latency / greedy == pytest.approx(found.latency_per_token)
    assert found.expected_compute / greedy == pytest.approx(found.compute_per_token)
    busy = found.expected_compute / found.expected_latency
    assert busy == pytest.approx(found.compute_per_time_unit)


def run_lengths(matches: list[bool]) -> list[int]:
    """Tokens of each run, the last one cut off by the end of the output."""
    lengths = [1]
    for match in matches[:-1]:
        if match:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


@pytest.mark.parametrize(
    ("matches", "lengths"),
    [
        ([True], [1]),
        ([False], [1]),
        ([False, False], [1, 1]),
        ([True, True, True], [3]),
        ([True, False, True, True, False], [2, 3]),
        ([False, True, False, False], [1, 2, 1]),
    ],
)
def test_a_miss_ends_a_run_unless_it_is_the_last_token(
    matches: list[bool], lengths: list[int]
) -> None:
    assert run_lengths(matches) == lengths
    assert theory.ended_runs([matches]) == Counter(lengths[:-1])
    d, exit_after, k = 10, 6, 3
    latency = sum(d + (x - 1) * exit_after for x in lengths)
    compute = sum((exit_after + k * (d - exit_after)) * x + d - exit_after for x in lengths)
    tokens, runs = len(matches), len(lengths)
    assert theory.latency_of_runs(tokens, runs, d, exit_after) == latency
    assert theory.compute_of_runs(tokens, runs, d, exit_after, k) == compute


def test_ended_runs_are_those_of_every_output_without_its_last() -> None:
    outputs = [
        [bool(number >> place & 1) for place in range(length)]
        for length in range(1, 8)
        for number in range(1 << length)
    ]
    lengths = [n for matches in outputs for n in run_lengths(matches)[:-1]]
    assert theory.ended_runs(outputs) == Counter(lengths)
    assert theory.ended_runs([[True, True], [True]]) == {}


def test_recorded_matches_average_to_the_theorem() -> None:
    # All 8 sequences of 3 tokens, equally likely: p = 1/2.
    sequences = [[bool(n & bit) for bit in (1, 2, 4)] for n in range(8)]
    runs = [len(run_lengths(s)) for s in sequences]
    latencies = [theory.latency_of_runs(3, n, 10, 7) for n in runs]
    assert sum(latencies) / 8 == theory.expected_latency(10, 7, 0.5, 3)
    computes = [theory.compute_of_runs(3, n, 10, 7, 5) for n in runs]
    assert sum(computes) / 8 == theory.expected_compute(10, 7, 5, 0.5, 3)


@pytest.mark.parametrize("tokens", [1, 2, 16])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize(("n_layers", "exit_after"), [(8, 4), (8, 7), (9, 5)])
def test_simulated_generations_agree_with_the_theorem(
    n_layers: int, exit_after: int, p: float, tokens: int
) -> None:
    k = 3
    found = theory.simulate(n_layers, exit_after, k, p, tokens, runs=800, seed=7)
    latency = theory.expected_latency(n_layers, exit_after, p, tokens)
    compute = theory.expected_compute(n_layers, exit_after, k, p, tokens)
    assert found.latency == pytest.approx(latency, abs=4 * found.latency_error + 1e-9)
    assert found.compute == pytest.approx(compute, abs=4 * found.compute_error + 1e-9)


def test_without_chance_the_simulation_is_exact() -> None:
    for p in (0.0, 1.0):
        found = theory.simulate(40, 20, 1, p, tokens=10, runs=3, seed=1)
        assert (found.latency, found.latency_error) == (theory.expected_latency(40, 20, p, 10), 0)
        assert (found.compute, found.compute_error) == (
            theory.expected_compute(40, 20, 1, p, 10),
            0,
        )


def test_standard_error_has_the_binomial_size() -> None:
    # Each of the 15 matches that matter saves d - exit layers, with variance p(1 - p).
    found = theory.simulate(8, 4, 1, 0.5, tokens=16, runs=2000, seed=3)
    assert found.latency_error == pytest.approx(4 * (15 * 0.25 / 2000) ** 0.5, rel=0.1)


def test_a_seed_fixes_the_simulation() -> None:
    again = [theory.simulate(8, 4, 1, 0.5, 16, runs=20, seed=s) for s in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_figure_axes() -> None:
    found = point("squad", 5, True)
    assert found.figure_3 == (found.compute_per_time_unit, found.latency_per_token)
    assert found.figure_4 == (found.compute_per_token, found.latency_per_token)


def test_figure_points_take_a_probes_exit_layer() -> None:
    rate = theory.MatchRate("mine", k=3, trained=False, match_rate=0.8)
    (found,) = theory.figure_points([rate], n_layers=12, exit_after=9)
    assert found.latency_per_token == pytest.approx(0.8)
    assert found.compute_per_token == pytest.approx(0.8 + 3 / 4)


@pytest.mark.parametrize("exit_after", [0, -1, 40, 41])
def test_exit_outside_the_model_is_refused(exit_after: int) -> None:
    with pytest.raises(ConfigError) as caught:
        theory.check_exit(40, exit_after)
    assert str(caught.value) == (
        f"exit_after={exit_after}, but this model has 40 layers; use 20..39"
    )


def test_exit_before_the_middle_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"less than half of 41 layers.*layer 21.*use 21\.\.40"):
        theory.check_exit(41, 20)
    theory.check_exit(41, 21)
    theory.check_exit(40, 20)
    theory.check_exit(2, 1)


def test_a_single_layer_cannot_be_pipelined() -> None:
    with pytest.raises(ConfigError, match="2 layers or more"):
        theory.check_exit(1, 1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"p": -0.1}, "fraction from 0 to 1"),
        ({"p": 38.9}, "fraction from 0 to 1"),
        ({"p": float("nan")}, "fraction from 0 to 1"),
        ({"tokens": 0}, "tokens=0"),
        ({"exit_after": 19}, "less than half"),
    ],
)
def test_impossible_settings_are_refused(bad: dict[str, Any], message: str) -> None:
    good = {"n_layers": 40, "exit_after": 20, "k": 1, "p": 0.5, "tokens": 8}
    with pytest.raises(ConfigError, match=message):
        theory.tradeoff(**good | bad)
    with pytest.raises(ConfigError, match=message):
        theory.simulate(**good | bad, runs=2, seed=0)


def test_one_simulated_run_has_no_error_bar() -> None:
    with pytest.raises(ConfigError, match="runs=1"):
        theory.simulate(8, 4, 1, 0.5, 8, runs=1, seed=0)


def test_a_layer_that_the_paper_did_not_probe_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 10, 20, 30, 35, 37"):
        theory.paper_match_rates(15)
