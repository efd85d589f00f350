"""The bounds of templates: they see texts and nothing else, and cannot run away."""

from __future__ import annotations

import time

import pytest

from benchmarks.attack.templates import REACHING, TELLING
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
