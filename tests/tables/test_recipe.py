"""Recipes: what stands in a command for layers, folders and texts."""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import Any

import click
import pytest

from ppdbench.cli.main import cli
from ppdbench.errors import ConfigError
from ppdbench.files import papers
from ppdbench.tables import TABLES
from ppdbench.tables.base import table
from ppdbench.tables.recipe import (
    GIVEN,
    RecipeStep,
    layer_at,
    layers_at,
    nearest_layers,
    with_layers,
)

DEPTHS = "{10/40},{20/40},{30/40},{35/40},{37/40}"


@pytest.mark.parametrize(
    ("n_layers", "layers"),
    [
        (40, "10,20,30,35,37"),
        (12, "3,6,9,10,11"),
        (8, "2,4,5,6,7"),
        (6, "1,2,3,4,5"),
    ],
)
def test_different_shares_are_different_layers_and_never_the_last(
    n_layers: int, layers: str
) -> None:
    assert with_layers(DEPTHS, n_layers) == layers


def test_a_model_with_fewer_layers_than_shares_gets_what_lies_nearest() -> None:
    assert with_layers(DEPTHS, 4) == "1,2,3,3,3"
    assert with_layers("{20/40}", 2) == "1"


def test_equal_shares_are_one_layer_however_they_are_written() -> None:
    assert with_layers("{1/2} {20/40} {16/32}", 8) == "4 4 4"
    assert layers_at([Fraction(1, 2), Fraction(2, 4)], 8) == {Fraction(1, 2): 4}


def test_a_model_of_one_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 layer has none before the last"):
        layer_at(Fraction(1, 2), 1)


def test_each_of_our_layers_stands_beside_the_nearest_of_theirs_and_only_once() -> None:
    theirs = [10, 20, 30, 35, 37]
    assert nearest_layers(theirs, 40, [2, 4, 5, 6, 7], 8) == {10: 2, 20: 4, 30: 6, 35: 7}
    assert nearest_layers(theirs, 40, [1, 2, 3, 4, 5, 6, 7], 8) == {10: 2, 20: 4, 30: 6, 35: 7}
    assert nearest_layers(theirs, 40, theirs, 40) == {n: n for n in theirs}
    assert nearest_layers(theirs, 40, [], 8) == {}


def test_names_become_what_they_stand_for_and_empty_options_go() -> None:
    step = RecipeStep(
        "b", "probe --head {heads} --layers {1/2} --method medusa:addon={a} --text {text}"
    )
    assert step.names == {"heads", "a", "text"}
    words = step.words(4, {"heads": None, "a": "runs/a", "text": "my text.txt"})
    assert words == [
        *("probe", "--layers", "2", "--method", "medusa:addon=runs/a"),
        *("--text", "my text.txt"),
    ]


def test_a_step_leaves_a_folder_behind() -> None:
    with pytest.raises(ValueError, match="leaves no folder"):
        RecipeStep("a", "list methods")


def test_one_name_is_one_command_and_steps_know_those_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ppdbench.tables.base.STEPS", {"a": RecipeStep("a", "probe --task squad")})
    other = table("none/1", recipe=(RecipeStep("a", "probe --task xsum"),))
    with pytest.raises(ValueError, match="another command elsewhere"):
        other(_no_layout)
    with pytest.raises(ValueError, match="not run before it"):
        table("none/2", recipe=(RecipeStep("b", "probe --head {c}"),))(_no_layout)
    assert "none/1" not in TABLES


def _no_layout(paper: Any, runs: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize("name", TABLES.names())
def test_every_table_has_printed_numbers_and_a_recipe_that_can_be_typed(name: str) -> None:
    assert papers.read_paper(name)["rows"]
    meant = dict.fromkeys(GIVEN, "somewhere")
    for step in TABLES.get(name).recipe:
        meant[step.name] = "somewhere"
        words = [*step.words(40, meant), "--out", "somewhere", "--resume"]
        _parse(cli, words)


def _parse(group: click.Group, words: list[str]) -> None:
    """What the parser would refuse raises."""
    command = group.get_command(click.Context(group), words[0])
    assert command is not None
    if isinstance(command, click.Group):
        _parse(command, words[1:])
    else:
        command.make_context(words[0], words[1:])


def test_what_a_table_needs_can_be_typed() -> None:
    needs = TABLES.get("ppd/2").needs
    assert needs.startswith("ppdbench table ppd/2 --run, which is: ppdbench probe ")
    assert "--task" in shlex.split(needs)
