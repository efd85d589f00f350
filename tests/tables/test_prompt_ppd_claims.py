"""What the paper's text says of prompt tokens, answered by runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.cli.main import run
from tests.tables.stored import about, decoded, guessed, sample, table
from tests.tables.test_prompt_ppd import FACTS, METHODS, TEXT, Capture, probed, told


def claims(capsys: Capture, *stored: str) -> dict[str, tuple[float, float]]:
    rows = table(capsys, "prompt_ppd/claims", *stored)["rows"]
    return {
        row["claim"]: (row["here low"], row["here high"])
        for row in rows
        if row["here low"] is not None
    }


def test_claims_are_answered_by_what_was_run(tmp_path: Path, capsys: Capture) -> None:
    samples = [sample("mt_bench", name, n) for name in METHODS for n in range(5)]
    samples += [sample("gsm8k", "prompt-tokens", n, step_ms=[2.0] * 4) for n in range(5)]
    run_ = decoded(tmp_path / "a", METHODS, samples, facts=FACTS)
    guesses = guessed(
        tmp_path / "b",
        {"medusa": {1: [0, 9], 3: [9, 9]}, "prompt-tokens": {1: [0, 0], 3: [0, 9]}},
        {name: about(name) for name in ("medusa", "prompt-tokens")},
    )
    found = claims(capsys, run_, guesses)
    assert found["speedup_range_greedy_all_tasks"] == (pytest.approx(1.6), pytest.approx(4))
    assert found["speedup_range_coding_math"] == (pytest.approx(4), pytest.approx(4))
    assert found["speedup_over_medusa_max"] == (pytest.approx(0), pytest.approx(0))
    assert found["trainable_parameter_fraction"][0] == pytest.approx(3e-4)
    assert found["tree_size_relative_to_medusa"][0] == pytest.approx(8 / 17)
    assert found["distance3_gap_top1"][0] == pytest.approx(0.5)
    assert "kd_gain_max" not in found


def test_guesses_of_two_settings_of_one_method_are_refused(tmp_path: Path, capsys: Capture) -> None:
    def of(folder: str, addon: str) -> str:
        methods = {"medusa": about("medusa"), "prompt-tokens": about("prompt-tokens", addon=addon)}
        return guessed(tmp_path / folder, {label: {1: [0]} for label in methods}, methods)

    one, other = of("a", "small"), of("b", "large")
    assert run(["table", "prompt_ppd/claims", one, other]) == 2
    said = f"prompt-tokens ({one}) and prompt-tokens ({other}) are two settings of prompt-tokens"
    assert said in capsys.readouterr().err


def test_claims_about_ablations_are_relative_changes(tmp_path: Path, capsys: Capture) -> None:
    stored = probed(
        tmp_path / "a",
        ({}, told(12), 5),
        (TEXT, told(12), 4),
        ({"prefix": 1}, told(12), 3),
        ({**TEXT, "epts": 10}, told(12), 6),
        ({**TEXT, "epts": 10, "mask": "decoder"}, told(12), 3),
    )
    found = claims(capsys, stored)
    assert found["kd_gain_max"] == (pytest.approx(0), pytest.approx(0.25))
    assert found["prefix_tuning_loss_max"] == (pytest.approx(0), pytest.approx(0.4))
    assert found["ept100_over_ept1_accuracy_gain"] == (pytest.approx(0), pytest.approx(0.5))
    assert found["decoder_mask_loss"] == (pytest.approx(0), pytest.approx(0.5))
    assert "encoder_mask_loss" not in found
