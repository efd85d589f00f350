"""What is swept: cells and their labels, and whatever cannot be one."""

from __future__ import annotations

import pytest

from ppdbench.bench.grid import Grid
from ppdbench.errors import ConfigError


def space(*grid: str, method: str = "layerskip", fixed: tuple[str, ...] = ()) -> Grid:
    return Grid.parse(method, grid, fixed)


def test_cells_are_all_combinations_and_are_named_by_what_varies() -> None:
    found = space("exit_layer=2,4", "adaptive=true,false", fixed=("draft_length=3",))
    assert list(found.cells()) == [
        "layerskip:exit_layer=2,adaptive=true",
        "layerskip:exit_layer=2,adaptive=false",
        "layerskip:exit_layer=4,adaptive=true",
        "layerskip:exit_layer=4,adaptive=false",
    ]
    method, strategy = found.build()["layerskip:exit_layer=4,adaptive=false"]
    values = method.values(strategy)
    assert (values["exit_layer"], values["adaptive"], values["draft_length"]) == (4, False, 3)


def test_temperatures_are_cells_of_their_own_with_the_same_options() -> None:
    found = space("temperature=0.3,1", "exit_layer=2,4")
    assert found.temperatures() == {
        "layerskip:temperature=0.3,exit_layer=2": 0.3,
        "layerskip:temperature=0.3,exit_layer=4": 0.3,
        "layerskip:temperature=1,exit_layer=2": 1.0,
        "layerskip:temperature=1,exit_layer=4": 1.0,
    }
    assert list(found.cells().values())[:2] == [{"exit_layer": "2"}, {"exit_layer": "4"}]
    assert len(found.build()) == 4
    assert space("exit_layer=2").temperatures() == {}


@pytest.mark.parametrize(
    ("grid", "fixed", "message"),
    [
        (["temperature=0.3,hot"], (), "--grid temperature=hot: use numbers such as 0.3,0.6,1"),
        (["temperature=1,1.0"], (), "--grid temperature has the value 1 twice"),
        (["exit_layer=2,4"], ("temperature=1",), "temperature"),
        ([], (), "needs an option with values to try: --grid"),
        (["exit_layer"], (), "use key=value"),
        (["exit_layr=2,4"], (), "did you mean exit_layer"),
        (["exit_layer=2,many"], (), "'many' is not a value of type int"),
        (["exit_layer=2,,4"], (), "'' is not a value of type int"),
        (["exit_layer=2,02"], (), "--grid exit_layer has the value 2 twice"),
        (["exit_layer=2", "exit_layer=4"], (), "given twice"),
        (["exit_layer=2,4"], ("exit_layer=3",), "given by both --grid and --set"),
        (["draft_length=0,2"], (), "draft_length=0; use 1 or more"),
        (["max_draft=0,2"], (), "max_draft=0; use 1 or more"),
        (["adaptive=true,false", "draft_length=4,16"], (), "max_draft=12 is below draft_length=16"),
    ],
)
def test_what_cannot_be_swept_is_named(
    grid: list[str], fixed: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        space(*grid, fixed=fixed).build()


def test_a_choice_left_to_the_method_is_no_cell() -> None:
    with pytest.raises(ConfigError, match="--grid k=0; use 1 or more"):
        space("k=0,3", method="ppd").build()


def test_methods_without_options_cannot_be_swept() -> None:
    with pytest.raises(ConfigError, match="'greedy' has no options"):
        space("window=2,4", method="greedy").build()
