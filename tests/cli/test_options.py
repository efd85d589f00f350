"""Options that commands share: whoever lists those of a model lists all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import pytest

from ppdbench.cli import env_command, table_command, tree_command
from ppdbench.cli.help import HEADINGS
from ppdbench.cli.options import model_options


@click.command("any")
@model_options
def any_command(**options: Any) -> None:
    """Has the options of a model and no others."""


OF_A_MODEL = {str(option.name) for option in any_command.params}
TABLE = (*table_command.HANDED_ON, *table_command.WITHOUT_INFLUENCE)
HELP = (*HEADINGS["Model"], *HEADINGS["Machine"])


@pytest.mark.parametrize(
    ("listed", "others"),
    [
        pytest.param(TABLE, (), id="table"),
        pytest.param(HELP, (), id="help"),
        # These change no time of a pass.
        pytest.param(tree_command.MEASURING, table_command.WITHOUT_INFLUENCE, id="tree"),
        # These mean something where there is no model.
        pytest.param(env_command.OF_MODELS, ("model", "device", "threads"), id="env"),
    ],
)
def test_each_option_of_a_model_is_listed_or_left_out_on_purpose(
    listed: Sequence[str], others: Sequence[str]
) -> None:
    assert OF_A_MODEL - {*listed} == {*others}


def test_no_option_of_a_model_both_decides_what_comes_out_and_has_no_influence() -> None:
    assert not {*table_command.HANDED_ON} & {*table_command.WITHOUT_INFLUENCE}
