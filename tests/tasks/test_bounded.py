"""The bounds of templates: they see texts and nothing else, and cannot run away."""

from __future__ import annotations

import time

import pytest

from benchmarks.attack.templates import GROWING, REACHING, SLOW, TELLING
from ppdbench.errors import ConfigError
from ppdbench.tasks import Template
from tests.tasks.made import VALUES, refused


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ text.__class__ }}",
        "{{ text['__class__'] }}",
        "{{ text | attr('__class__') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ namespace().__init__ }}",
        "{{ range.__init__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ ''['format'](1) }}",
        "{{ (text | attr('format'))(1) }}",
        "{{ ('%s' | attr('for' ~ 'mat'))(1) }}",
        "{{ '%s' % text }}",
        "{{ '%s' | format(text) }}",
        "{{ config }}",
        "{{ [].append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{% extends 'x' %}",
        "{% set x = text.__class__ %}{{ x() }}",
        "{{ text | random }}",
    ],
)
def test_ways_out_of_the_sandbox_are_closed(source):
    refused(source)


def test_unsafe_attributes_of_many_items_are_undefined():
    source = "{{ [text] | map(attribute='__class__') | list }}"
    assert "str" not in Template("t", source).render(VALUES)
    refused("{{ [text] | map(attribute='__class__') | join }}")


def test_an_unsafe_attribute_is_called_not_allowed_with_its_line():
    message = refused("one\ntwo {{ text.__class__ }}\n")
    assert "line 2" in message
    assert "not allowed in a prompt" in message


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


@pytest.mark.parametrize("source", {**TELLING, **REACHING}.values())
def test_no_template_tells_an_address_or_reaches_out(source):
    try:
        assert " at 0x" not in Template("t", source).render(VALUES)
    except ConfigError as error:
        assert " at 0x" not in str(error)


def test_ten_thousand_prompts_take_no_time_to_speak_of():
    template = Template("t", "{{ text | trim }}\n### Question: {{ more }}\n### Answer:")
    start = time.process_time()
    for _ in range(1000):
        template.render(VALUES)
    assert time.process_time() - start < 1  # 0.04 s where nothing else runs
