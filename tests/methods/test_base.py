"""A method's options: read by their types, refused by name, and kept when a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ppdbench.engine.loading import ModelSpec
from ppdbench.errors import ConfigError, UnknownName
from ppdbench.methods import METHODS
from ppdbench.methods.base import (
    Method,
    check_least,
    check_words,
    left_open,
    option,
    option_values,
    split_name,
)

TARGET = ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300", device="cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of every type."""

    length: int = 0
    share: float = option(0.5, help="of what there is")
    sure: bool = False
    form: str = "chain"
    files: str = option("", help="a folder", names="file")

    def __post_init__(self) -> None:
        check_least("odd", self, length=0)
        check_words("odd", self, form=("chain", "tree"))


ODD = Method("odd", Options, True, False, "Odd.")


def test_options_are_read_as_the_types_they_declare() -> None:
    words = {"length": "4", "share": "0.25", "sure": "TRUE", "form": "tree"}
    made: Any = ODD.build(words)
    assert (made.length, made.share, made.sure, made.form) == (4, 0.25, True, "tree")

    assert list(ODD.values(made)) == ["length", "share", "sure", "form", "files"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("length", "many", "odd: length='many' is not a value of type int"),
        ("share", "half", "odd: share='half' is not a value of type float"),
        ("sure", "yes", "odd: sure='yes' is not true or false"),
        ("length", "-1", "odd: length=-1; use 0 or more"),
        ("form", "bush", "odd: form='bush' is not known; use chain, tree"),
    ],
)
def test_values_that_cannot_be_are_refused_with_what_can(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ODD.build({name: text})
    assert str(caught.value) == said


def test_unknown_options_are_told_apart_from_methods_that_have_none() -> None:
    with pytest.raises(UnknownName, match="did you mean length"):
        ODD.read("lenght", "3")
    with pytest.raises(ConfigError, match="method 'greedy' has no options, so no 'length'"):
        METHODS.get("greedy").read("length", "3")


def test_options_are_listed_with_type_default_and_help() -> None:
    found = {one.name: (one.type, one.default, one.help) for one in ODD.options()}
    assert found["length"] == ("int", 0, "")
    assert found["share"] == ("float", 0.5, "of what there is")


def test_what_was_chosen_when_a_run_began_is_kept_and_nothing_else() -> None:
    asked: Any = Options(share=0.75)
    kept: Any = ODD.keeping(asked, {"length": 7, "width": 3})
    assert (kept.length, kept.share) == (7, 0.75)
    assert left_open(asked, length=5) == {"length": 5}
    assert left_open(kept, length=5) == {}


def test_files_that_are_not_there_are_refused_and_words_in_their_place_are_not(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="odd: files=nowhere: no such file or folder"):
        ODD.check_named(Options(files="nowhere"), TARGET)
    for there in ("", "reference", str(tmp_path)):
        ODD.check_named(Options(files=there), TARGET)


def test_a_model_that_is_not_there_is_refused_under_the_options_name() -> None:
    method = METHODS.get("speculative")
    with pytest.raises(ConfigError, match=r"speculative: draft model: .*nowhere"):
        method.check_named(method.build({"draft_model": "./nowhere"}), TARGET)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("greedy", ("greedy", "")),
        ("layerskip:draft_length=4", ("layerskip", "draft_length=4")),
        ("transformers:greedy", ("transformers:greedy", "")),
        ("transformers:early-exit:exit_layer=1", ("transformers:early-exit", "exit_layer=1")),
    ],
)
def test_names_and_options_are_parted_also_where_a_name_has_two_parts(
    text: str, parts: tuple[str, str]
) -> None:
    assert split_name(text) == parts


def test_settings_are_pairs() -> None:
    assert option_values(("a=1", "b=x=y")) == {"a": "1", "b": "x=y"}
    with pytest.raises(ConfigError, match="use key=value"):
        option_values(("a",))
