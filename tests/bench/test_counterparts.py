"""Ours beside what transformers does alike: pairs by their options, ratios paired by example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.report.decode_tables import beside_peers
from ppdbench.runs.store import read_run
from tests.filled import add_up, beside
from tests.report.page import made

Sample = dict[str, Any]


def methods(**options: dict[str, Any]) -> dict[str, Any]:
    """Labels `name` or `name=exit_layer`."""
    return {
        label: {"name": label.partition("=")[0], "exact": True, "options": given}
        for label, given in options.items()
    }


OURS, THEIRS = "layerskip", "transformers:early-exit"
PAIR = methods(**{OURS: {"exit_layer": 2, "draft_length": 4}, THEIRS: {"exit_layer": 2}})
PAIR[THEIRS]["options"]["draft_length"] = 4


def test_the_ratio_is_their_time_over_ours_on_the_same_examples() -> None:
    samples = [made.decoded(OURS, str(n), 2.0) for n in range(5)]
    samples += [made.decoded(THEIRS, str(n), 0.5) for n in range(5)]
    (found,) = beside({"methods": PAIR}, add_up(samples))
    assert (found.ours, found.theirs, found.n_examples) == (OURS, THEIRS, 5)
    assert found.speedup.value == pytest.approx(4)


def test_outputs_of_unequal_length_count_by_the_token() -> None:
    short = {"output_ids": [5, 6, 7], "step_ms": [4.0], "accepted": [1], "verdict": "tie"}
    samples = [made.decoded(OURS, str(n), **short) for n in range(5)]  # 2 tokens in 4 ms
    samples += [made.decoded(THEIRS, str(n)) for n in range(5)]  # 4 in 12
    (found,) = beside({"methods": PAIR}, add_up(samples))
    assert found.speedup.value == pytest.approx(12 / 8)


@pytest.mark.parametrize(
    ("speeds", "again_ms", "words"),
    [
        ((1.2, 1.2), 12.0, "1.20x"),
        ((1.2, 1.2), 18.0, "no difference"),  # greedy decoding takes 1.5 times as long as itself
        ((0.5, 2.0), 12.0, "no difference"),  # its own interval holds 1
    ],
)
def test_what_noise_could_have_made_is_no_difference(
    speeds: tuple[float, float], again_ms: float, words: str
) -> None:
    noise = {"baseline_again_ms": again_ms}
    samples = [made.decoded(OURS, str(n), speeds[n % 2], **noise) for n in range(6)]
    samples += [made.decoded(THEIRS, str(n), **noise) for n in range(6)]
    found = beside({"methods": PAIR}, add_up(samples))
    assert [row[-2] for row in beside_peers(found).rows] == [words]


@pytest.mark.parametrize("wrong", [OURS, THEIRS])
def test_nothing_is_claimed_beside_a_mismatch(wrong: str) -> None:
    samples = [
        made.decoded(label, verdict="mismatch" if label == wrong else "identical")
        for label in (OURS, THEIRS)
    ]
    found = beside({"methods": PAIR}, add_up(samples))
    assert [(p.speedup.value, p.speedup.withheld) for p in found] == [(None, "mismatch")]
    assert beside_peers(found).rows[0][-2:] == ("-", "-")


def test_only_methods_with_the_same_options_stand_together() -> None:
    other = {"name": OURS, "exact": True, "options": {"exit_layer": 3, "draft_length": 4}}
    samples = [made.decoded(label) for label in (OURS, "other", THEIRS)]
    found = beside({"methods": {**PAIR, "other": other}}, add_up(samples))
    assert [pair.ours for pair in found] == [OURS]


def test_greedy_stands_beside_both_caches_of_generate() -> None:
    names = ("greedy", "transformers:greedy", "transformers:greedy-static")
    samples = [made.decoded(name) for name in names]
    found = beside({"methods": made.methods(*names)}, add_up(samples))
    assert [pair.theirs for pair in found] == list(names[1:])


def test_runs_without_peers_have_no_such_table(tmp_path: Path) -> None:
    run = read_run(made.bench(tmp_path / "run"))
    assert beside(run.header, add_up(run.samples)) == []


@pytest.mark.parametrize(("theirs", "pairs"), [(4, 1), (2, 0)])
def test_lengths_that_were_chosen_count_like_those_asked_for(theirs: int, pairs: int) -> None:
    asked, left_open = {"exit_layer": 2, "draft_length": 4}, {"exit_layer": 2, "draft_length": 0}
    header = {
        "methods": methods(**{OURS: asked, THEIRS: left_open}),
        "chosen": {THEIRS: {"draft_length": theirs}},
    }
    assert len(beside(header, add_up([made.decoded(OURS), made.decoded(THEIRS)]))) == pairs
