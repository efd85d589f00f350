"""The budget of a template: what it pays for, and what is refused before it is made."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from benchmarks.attack.templates import GROWING, SLOW
from ppdbench.tasks.budget import (
    BOUNDS,
    BUDGET,
    MAX_BITS,
    MAX_CHARS,
    MAX_DEPTH,
    MAX_LOOPS,
    PER_CHARACTER,
    PER_ITEM,
    UNITS,
    Budget,
    size_of,
)
from tests.tasks.made import refused


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10**9) | list }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(2 * 99999999999999999999) %}x{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{{ text * 100 }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [text] * 1000000000 }}",
        "{{ 9 ** 9999999 }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_runaway_templates_end_quickly(source):
    start = time.perf_counter()
    refused(source)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("name", [*GROWING, *SLOW])
def test_what_would_grow_or_take_long_is_refused_soon(name):
    start = time.process_time()
    refused({**GROWING, **SLOW}[name])
    assert time.process_time() - start < 10  # 1 s at most where nothing else runs


def test_sizes_are_what_is_in_a_value_however_deep() -> None:
    assert size_of("abc", 10) == 3
    assert size_of(["abc", {"k": [1, None, "de"]}], UNITS) == 8 * PER_ITEM + 3 + 1 + 2
    assert size_of(range(10**9), 50) == 51  # counted before it is made


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (
            functools.reduce(lambda inner, _: [inner], range(MAX_DEPTH + 2), []),
            OverflowError,
            "deep",
        ),
        (1 << (64 * MAX_BITS + 1), OverflowError, "thousands of digits"),
        ([1, [object()]], SecurityError, "no text for a object"),
    ],
    ids=["depth", "digits", "object"],
)
def test_what_has_no_bounded_text_has_no_size(
    value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        size_of(value, UNITS)


def test_a_budget_grows_with_what_it_is_given_and_ends() -> None:
    budget = Budget(10)
    assert budget.units == budget.left == UNITS + 10 * PER_CHARACTER
    budget.spend(budget.left)
    with pytest.raises(OverflowError, match=f"more than {budget.units} steps"):
        budget.spend(1)
    with pytest.raises(OverflowError, match=f"more than {MAX_CHARS} characters"):
        Budget().text(MAX_CHARS + 1)


def test_what_is_lazy_is_gathered_and_paid_item_by_item() -> None:
    budget = Budget()
    assert budget.take(n for n in (1, 2, 3)) == [1, 2, 3]
    assert budget.units - budget.left == 3 * PER_ITEM + 4 * PER_ITEM
    budget.left = 10 * PER_ITEM
    with pytest.raises(OverflowError):
        budget.take(n for n in iter(int, 1))  # without an end
    thing = object()
    assert budget.look(thing) is thing
    with pytest.raises(SecurityError):
        Budget().take(thing)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("replace", ("a" * 1000, "a", "b" * MAX_CHARS)),
        ("join", (["x"] * 1000, "y" * 10_000)),
        ("batch", ([1], MAX_LOOPS + 1)),
        ("indent", ("a\n" * 1000, 10_000)),
        ("round", (1.5, 31)),
    ],
)
def test_what_a_filter_would_make_is_refused_before_it_is_made(
    name: str, given: tuple[Any, ...]
) -> None:
    token = BUDGET.set(Budget())
    try:
        with pytest.raises(OverflowError):
            BOUNDS[name](*given)
    finally:
        BUDGET.reset(token)


def test_a_replacement_that_is_counted_is_paid_as_far_as_it_goes() -> None:
    token = BUDGET.set(Budget())
    try:
        BOUNDS["replace"]("a" * 1000, "a", "b" * 11, 2)
        assert UNITS - BUDGET.get().left == 1000 + 2 * 10
    finally:
        BUDGET.reset(token)
