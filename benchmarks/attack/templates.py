"""Templates that would take gigabytes or minutes, print addresses, or reach what is not theirs."""

from __future__ import annotations

_LONG = "{% set a = 'x' * 3900000 %}"
_OFTEN = "{% for i in range(90000) %}"
_END = "{% endfor %}"
_MACRO = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}"

# Name -> template. `text` is a variable of theirs.
GROWING = {
    "doubled by ~": "{% set a = text %}" + "{% set a = a ~ a %}" * 40 + "{{ a }}",
    "doubled by +": "{% set a = text %}" + "{% set a = a + a %}" * 40 + "{{ a }}",
    "a list doubled": "{% set a = [text] %}" + "{% set a = a + a %}" * 40 + "{{ a }}",
    "lists within lists": "{% set a = [text] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}",
    "objects within objects": "{% set a = {'x': text} %}"
    + "{% set a = {'x': a, 'y': a} %}" * 40
    + "{{ a }}",
    "a key without end": "{% set a = (1, 2) %}" + "{% set a = (a, a) %}" * 40 + "{{ {a: 1} }}",
    "replace": "{% set a = text %}" + "{% set a = a | replace('', a) %}" * 10 + "{{ a }}",
    "the method replace": "{% set a = text %}" + "{% set a = a.replace('', a) %}" * 10 + "{{ a }}",
    "join": _LONG + "{{ range(90000) | join(a) }}",
    "the method join": _LONG + "{{ a.join(a) }}",
    "slice": "{{ 'a' | slice(1000000000) | list }}",
    "batch": "{{ 'a' | batch(1000000000, 'x') | list }}",
    "a block set again": "{% set a %}xxxxxxxxxx{% endset %}"
    + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40,
    "a macro doubled": _MACRO + "{% else %}xxxxx{% endif %}{% endmacro %}{{ m(60) }}",
    "a number squared": "{% set a = 7 %}" + "{% set a = a * a %}" * 60 + "{{ a }}",
    "tojson": "{{ [text] | tojson(indent=100000000) }}",
    "tojson of much": "{% set a = [1] * 300000 %}{{ [a] | tojson(indent=300) }}",
    "round": "{{ 1.5 | round(100000000, 'ceil') }}",
    "sum": "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "map": "{% set a = ['x' * 3000000] * 1000 %}{{ a | map('upper') | list | length }}",
    "bytes": "{{ text.encode().ljust(1000000000) }}",
    "bytes of a number": "{{ (5).to_bytes(1000000000, 'big') }}",
    "translate": "{{ text.translate({104: 'x' * 1000000}) * 1000 }}",
    "many long texts": _OFTEN + "{% set a = (text * 100000) ~ i %}" + _END,
}
SLOW = {
    "nested loops": _LONG + "{% for b in a %}" * 5 + "y" + _END * 5,
    "loops that choose nothing": _LONG + "{% for b in a if b == 'y' %}y{% endfor %}" * 99,
    "loops of numbers": "{% for i in range(300) %}" * 5 + _END * 5,
    "a macro that calls itself": _MACRO + "{% endif %}{% endmacro %}{{ m(500) }}",
    "a loop that calls itself": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "comparing": _LONG + "{% set b = 'x' ~ a[1:] %}" + _OFTEN + "{{ a == b }}" + _END,
    "searching": _LONG + _OFTEN + "{{ 'y' in a }}" + _END,
    "slicing": _LONG + _OFTEN + "{% set b = a[::-1] %}" + _END,
    "upper": _LONG + _OFTEN + "{% set b = a | upper %}" + _END,
    "sort": _LONG + _OFTEN + "{% set b = a | sort %}" + _END,
    "groupby": _LONG + "{{ a | groupby(0) | list | length }}",
    "title": "{% set a = 'xy ' * 1000000 %}" + _OFTEN + "{% set b = a | title %}" + _END,
    "wordcount": "{% set a = 'xy ' * 1000000 %}" + _OFTEN + "{{ a | wordcount }}" + _END,
    "a long body": _OFTEN + "{% if 'x' < text %}y{% endif %}" * 1500 + _END,
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "conditions": "{% if text %}" * 5000 + "{% endif %}" * 5000,
    "digits": "{{ " + "9" * 100000 + " }}",
    "a long source": "x" * 300_000,
}
TELLING = {
    "a method": "{{ text.upper }}",
    "a function": "{{ range }}",
    "a method in a list": "{{ [text.upper] }}",
    "a function in an object": "{{ {'a': range} }}",
    "a loop": "{% for i in [1] %}{{ loop }}{% endfor %}",
    "a macro": "{% macro m() %}{% endmacro %}{{ m }}",
    "a caller": "{% macro m() %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}",
    "joined to a text": "{{ text ~ text.upper }}",
    "as a string": "{{ text.upper | string }}",
    "in a replacement": "{{ text | replace('h', text.upper) }}",
    "as JSON": "{{ text.upper | tojson }}",
    "the template itself": "{{ self }}",
    "a generator": "{{ [text.upper] | select | string }}",
}
REACHING = {
    "a class": "{{ text.__class__.__mro__ }}",
    "by format": "{{ '{0.__class__}'.format(1) }}",
    "globals": "{{ range.__globals__ }}",
    "a file": "{% include '/etc/hostname' %}",
    "half a pair": r"{{ '\ud800' }}",
}
TEMPLATES = {**GROWING, **SLOW, **TELLING, **REACHING}
OF_CHATS = {
    "a namespace doubled": "{% set n = namespace(a='x') %}{% for i in range(99) %}"
    "{% set n.a = n.a ~ n.a %}{% endfor %}{{ n.a }}",
    "a namespace of lists": "{% set n = namespace(a=[1]) %}{% for i in range(99) %}"
    "{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
    "indented": "{{ ('a\n' * 1000) | indent(100000) }}",
    "long separators": "{{ ([1] * 100000) | tojson(separators=['x' * 1000000, ':']) }}",
    "a namespace's address": "{{ namespace }}",
    "an exception's address": "{{ raise_exception }}",
}
