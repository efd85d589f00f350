"""The recipe's numbers are those of the paper's formulas and tables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import yaml

from ppdbench.errors import ConfigError
from ppdbench.files.resources import folder
from ppdbench.methods.layerskip.recipe import PRESETS, Recipe, within_depth

L = 24


def test_dropout_is_zero_at_the_first_and_p_max_at_the_last_layer() -> None:
    recipe = Recipe(p_max=0.2)
    assert recipe.dropout(0, L, 5, 100) == 0
    assert recipe.dropout(L - 1, L, 5, 100) == pytest.approx(0.2)
    assert recipe.dropout(10, L, 5, 100) == pytest.approx(0.2 * (2 ** (10 / 23) - 1))


def test_the_mean_dropout_is_the_constant_rate_of_figure_12() -> None:
    recipe = Recipe(p_max=0.2)
    assert sum(recipe.dropout(n, 32, 0, 1) for n in range(32)) / 32 == pytest.approx(
        0.0889, abs=5e-5
    )


def test_dropout_grows_over_the_run_only_where_it_ramps() -> None:
    ramped = Recipe(p_max=0.2, ramp=True)
    assert ramped.dropout(L - 1, L, 0, 100) == 0
    assert ramped.dropout(L - 1, L, 99, 100) == pytest.approx(0.2)
    assert ramped.dropout(L - 1, L, 50, 100) == pytest.approx(
        0.2 * (math.exp(50 * math.log(2) / 99) - 1)
    )
    assert Recipe(p_max=0.2).dropout(L - 1, L, 0, 100) == pytest.approx(0.2)


@pytest.mark.parametrize("curriculum", ["rotational", "gradual", "none"])
def test_exit_weights_sum_to_one_and_always_hold_the_last_layer(curriculum: str) -> None:
    recipe = Recipe(curriculum=curriculum, rotation=23)
    for t in range(0, 200, 7):
        exits = recipe.exits(L, t, 200)
        assert L - 1 in exits
        assert sum(exits.values()) == pytest.approx(1)


def test_exit_scales_are_the_papers_quadratic() -> None:
    recipe = Recipe(e_scale=0.2)
    assert recipe.exit_scale(0, L) == 0
    assert recipe.exit_scale(4, L) == pytest.approx(0.2 * 10)
    assert recipe.exit_scale(L - 1, L) == pytest.approx(23 + 0.2 * 22 * 23 / 2)


def test_a_rotation_visits_every_layer_once_per_period() -> None:
    recipe = Recipe(rotation=8)
    seen = [n for t in range(8) for n in recipe.exits(L, t, 100) if n != L - 1]
    # Layer 0 has weight 0 by formula and is never trained.
    assert sorted(seen) == list(range(1, L - 1))


def test_a_gradual_curriculum_switches_on_downwards_and_is_complete_half_way() -> None:
    recipe = Recipe(curriculum="gradual", e_scale=1.0)
    assert set(recipe.exits(L, 0, 480)) == {23}
    assert set(recipe.exits(L, 10, 480)) == {22, 23}
    assert set(recipe.exits(L, 239, 480)) == set(range(1, L))


def test_without_the_early_exit_loss_only_the_last_layer_counts() -> None:
    assert Recipe(e_scale=None).exits(L, 3, 10) == {23: 1.0}


def test_presets_are_the_papers_hyperparameters() -> None:
    rows = yaml.safe_load((folder("papers") / "layerskip_text.yaml").read_text("utf-8"))["rows"]
    names = ["continual-7b", "continual-13b", "scratch-1.5b", "scratch-7b", "code-7b", "topv2-1.5b"]
    for name, row in zip(names, rows, strict=True):
        recipe = PRESETS[name].recipe
        assert (recipe.p_max, recipe.e_scale) == (row["p_max"], row["e_scale"])
        assert recipe.curriculum == row["curriculum"]
        assert row["R"] in (None, recipe.rotation)
        assert recipe.ramp == (row["time_scale"] == "exponential")


EXPERIMENTS = {
    "continual-7b": ("continual_pretraining", "Llama2-7B"),
    "continual-13b": ("continual_pretraining", "Llama2-13B"),
    "scratch-1.5b": ("pretraining_from_scratch", "Llama-1.5B"),
    "scratch-7b": ("pretraining_from_scratch", "Llama2-7B"),
    "code-7b": ("finetuning_code", "Llama1-7B"),
    "topv2-1.5b": ("finetuning_task", "Llama-1.5B"),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_presets_have_the_papers_rates_and_lengths(name: str) -> None:
    def rows(number: int) -> list[dict[str, Any]]:
        path = folder("papers") / f"layerskip_table{number}.yaml"
        found: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["rows"]
        wanted = EXPERIMENTS[name] if number != 9 else EXPERIMENTS[name][1:]
        names = ("experiment", "model") if number != 9 else ("model",)
        return [row for row in found if tuple(row[n] for n in names) == wanted]

    preset = PRESETS[name]
    rates = {row["layer_dropout_inferred"]: row["initial_learning_rate"] for row in rows(8)}
    assert preset.learning_rate == preset.rate(preset.recipe) == rates[True]
    assert preset.rate(replace(preset.recipe, p_max=0.0)) == rates.get(False, rates[True])
    (size,) = rows(7)
    assert (preset.steps, preset.batch_size) == (
        size["steps"],
        size["batch_size"] * size["num_gpus"],
    )
    assert preset.sequence == rows(9)[0]["context"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p_max": 1.0}, "p_max=1.0; use"),
        ({"p_max": -0.1}, "p_max=-0.1; use"),
        ({"p_max": math.nan}, "p_max=nan"),
        ({"e_scale": 2.0}, r"e_scale=2.0; use 0\.\.1"),
        ({"curriculum": "rotating"}, "did you mean rotational"),
        ({"rotation": 0}, "rotation=0; use 1"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, float | str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe(**changes)  # type: ignore[arg-type]


def test_a_rotation_longer_than_the_model_is_refused_or_fitted() -> None:
    with pytest.raises(ConfigError, match=r"rotation=8, but this model has 4 layers; use 1\.\.3"):
        Recipe(rotation=8).check(4)
    within_depth(Recipe(rotation=8), 4).check(4)
