"""Templates of tasks: values put in as they are, mistakes placed."""

from __future__ import annotations

import pytest

from ppdbench.tasks import Template
from tests.tasks.made import VALUES, refused


def test_values_are_put_in_unescaped_and_never_evaluated():
    assert Template("t", "[{{ more }}]").render(VALUES) == "[{{ text }} <&>]"


def test_every_newline_of_a_template_counts():
    assert Template("t", "a\n\n{{ text }}\n\n").render(VALUES) == "a\n\nhello\n\n"


def test_useful_jinja_still_works():
    source = "{% for i in range(3) %}{{ i * 2 }}{{ '-' * 2 }}{% endfor %}{{ text | upper | trim }}"
    assert Template("t", source).render(VALUES) == "0--2--4--HELLO"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\nb {{ textt }}", "line 2: unknown variable 'textt'; the template may use: more, text"),
        ("a\n{% if %}", "line 2"),
        ("{{ text | nofilter }}", "nofilter"),
        ("\n{{ text.nothing }}", "line 2"),
        ("\n\n{{ 1 / 0 }}", "line 3"),
        ("{{ text + 1 }}", "TypeError"),
        (r"{{ '\ud800' }}", "surrogates not allowed"),
    ],
)
def test_mistakes_are_placed(source, expected):
    assert expected in refused(source)
