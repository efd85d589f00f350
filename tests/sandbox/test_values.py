"""Values between two processes: plain data comes over as it is, and nothing else does."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ppdbench.sandbox import values


def sent(value: Any) -> Any:
    """A value after the way over."""
    return values.from_plain(values.to_plain(value, lambda _: None), lambda number: number)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -7, 1 << 60, -(10**5000), 0.1, math.inf, 2 + 3j, "é\ud800\n", b"\0", ""),
        *([], [1, [2]], (), (1, "a"), {1, 2}, frozenset({"x"}), {}, {"a": [1], (1, 2): {3}}),
        *(range(1, 9, 2), bytearray(b"ab"), Fraction(1, 3), Decimal("0.10"), [True, 1, 1.0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_data_comes_over_as_it_is(value: Any) -> None:
    found = sent(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, list):
        assert [type(item) for item in found] == [type(item) for item in value]


def test_what_is_like_plain_data_comes_over_as_that() -> None:
    from collections import Counter, OrderedDict, namedtuple

    pair = namedtuple("pair", "a b")
    assert sent(Counter("aab")) == {"a": 2, "b": 1}
    assert type(sent(OrderedDict(a=1))) is dict
    assert sent(pair(1, 2)) == (1, 2)
    assert sent(np.float64(0.5)) == 0.5
    assert type(sent(np.int64(3))) is int
    assert sent(np.bool_(True)) is True
    assert list(sent(x * x for x in range(3))) == [0, 1, 4]
    assert list(sent(map(str, [1]))) == ["1"]
    assert sent({1: 2}.keys()) == {1}
    assert list(sent({1: [2]}.values())) == [[2]]


class Liar:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class LyingNumber(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_objects_stay_where_they_are() -> None:
    with pytest.raises(values.NotPlain, match="Liar"):
        sent(Liar())
    with pytest.raises(values.NotPlain):
        sent([object()])
    assert sent(LyingNumber(3)) != 4
    with pytest.raises(values.NotPlain, match="more than"):
        sent(iter(int, 1))


@pytest.mark.parametrize(
    "content",
    [
        *(
            {},
            {"tuple": [], "set": []},
            {"unknown": []},
            {"tuple": 3},
            {"set": [[]]},
            {"bytes": "x"},
        ),
        *({"dict": [1]}, {"callable": "0"}, {"callable": True}, {"Fraction": [1, 0]}),
        *({"Decimal": "x"}, {"int": "zz"}, {"range": ["a"]}, {"complex": [[]]}),
    ],
    ids=repr,
)
def test_what_is_no_value_is_refused(content: Any) -> None:
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        values.from_plain(content, lambda number: number)
