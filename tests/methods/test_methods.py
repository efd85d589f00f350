"""The table of our methods: it names all of them, and what it names is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench import methods
from ppdbench.methods import METHODS, OURS
from ppdbench.training.plans import TRAINABLES

FOLDER = Path(methods.__file__).parent
NO_METHODS = {"__init__", "base", "exits", "plugins"}


def test_every_file_and_folder_is_named() -> None:
    lying = {path.stem for path in FOLDER.glob("*.py")} - NO_METHODS
    lying |= {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert {modules[0].partition(".")[0] for modules in OURS.values()} == lying
    plans = {f"{path.parent.name}.plan" for path in FOLDER.glob("*/plan.py")}
    assert {module for modules in OURS.values() for module in modules[1:]} == plans


@pytest.mark.parametrize("name", OURS)
def test_what_is_named_registers_itself_under_that_name(name: str) -> None:
    made = [METHODS.get(name).make, *([TRAINABLES.get(name).plan] if len(OURS[name]) > 1 else [])]
    assert METHODS.get(name).name == name
    assert [one.__module__ for one in made] == [f"{methods.__name__}.{m}" for m in OURS[name]]
