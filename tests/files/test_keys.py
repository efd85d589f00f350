"""Mappings read key by key: what is there has its type, what is left over is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ppdbench.errors import ConfigError
from ppdbench.files.keys import Keys

Read = Callable[[Keys], object]


def keys(**content: Any) -> Keys:
    return Keys(content, "a.yaml")


@pytest.mark.parametrize(
    ("value", "read", "found"),
    [
        ("x", lambda k: k.text("a"), "x"),
        (None, lambda k: k.optional_text("a"), None),
        (3, lambda k: k.number("a"), 3),
        (3, lambda k: k.real("a"), 3.0),
        (False, lambda k: k.flag("a"), False),
        (["x", "y"], lambda k: k.texts("a"), ("x", "y")),
        ([], lambda k: k.items("a"), []),
        ("b.c", lambda k: k.columns("a"), ("b.c",)),
        (["b", None], lambda k: k.columns("a"), ("b", None)),
        (None, lambda k: k.columns("a"), ()),
        ({"b": 1}, lambda k: k.mapping("a"), {"b": 1}),
        ({"b": 1}, lambda k: k.section("a").number("b"), 1),
    ],
)
def test_values_are_read_as_what_they_are(value: Any, read: Read, found: object) -> None:
    given = keys(a=value)
    assert read(given) == found
    given.refuse_the_rest()


@pytest.mark.parametrize(
    ("value", "read", "says"),
    [
        ("", lambda k: k.text("a"), "a must be text, not an empty text"),
        ("", lambda k: k.optional_text("a"), "a must be text or null, not an empty text"),
        (True, lambda k: k.number("a"), "a must be a whole number, not true"),
        (1.5, lambda k: k.number("a"), r"a must be a whole number, not the number 1\.5"),
        ("1", lambda k: k.real("a"), "a must be a number, not the text '1'"),
        (10**400, lambda k: k.real("a"), "a must be a number of a usual size, not "),
        (1, lambda k: k.flag("a"), "a must be true or false, not the number 1"),
        (["x", 1], lambda k: k.texts("a"), "a must be a list of texts, not a list of 2"),
        ("x", lambda k: k.items("a"), "a must be a list, not the text 'x'"),
        ("b..c", lambda k: k.columns("a"), r"a must be a column path like a\.b"),
        ([None], lambda k: k.columns("a", none_allowed=False), "a must be a column path"),
        ([], lambda k: k.section("a"), r"a must be a mapping \(key: value\), not an empty list"),
        ([{}, 2], lambda k: k.sections("a", "row"), "row 2 must be a mapping, not the number 2"),
        ({"b": "1"}, lambda k: k.section("a").number("b"), r"a\.b must be a whole number"),
        ({}, lambda k: k.section("a").text("b"), r"the key a\.b is missing"),
    ],
)
def test_what_is_no_such_thing_is_told_with_file_and_key(value: Any, read: Read, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^a\.yaml: {says}"):
        read(keys(a=value))


def test_a_missing_key_is_an_error_unless_it_has_a_default() -> None:
    assert keys().number("a", 7) == 7
    assert keys().optional_text("a", None) is None
    with pytest.raises(ConfigError, match="the key a is missing; the file has: b, c"):
        keys(b=1, c=2).number("a")
    with pytest.raises(ConfigError, match="the key a is missing; the file has none"):
        keys().number("a")


def test_keys_that_nobody_asked_for_are_refused_with_the_nearest_that_is_known() -> None:
    given = keys(length=1, lenght=2)
    given.number("length")
    with pytest.raises(ConfigError, match="unknown key lenght: did you mean length"):
        given.refuse_the_rest()
    with pytest.raises(ConfigError, match="the key 1 must be text"):
        Keys({1: 2}, "a.yaml").refuse_the_rest()


def test_complaints_about_what_was_read_name_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^a\.yaml: too large$"), keys().telling():
        raise ConfigError("too large")
