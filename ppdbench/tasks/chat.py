"""Chat templates: programs from the authors of models, rendered within our bounds.

They see what transformers shows them (`apply_chat_template`), and may use what it lets them use,
but for filters and methods that make texts of any size from one number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.utils import Namespace

from ppdbench.errors import ConfigError, one_line
from ppdbench.tasks.bounded import Bounded, bounded_filter, line_of, rendered


class Generation(Extension):
    """`{% generation %}` marks what a model wrote; nothing is made of that here."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the content of the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Names(Namespace):
    """A namespace without private names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a name may be `self`
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"the name {name!r} begins with an underscore")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _object(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@lru_cache(maxsize=1)
def _environment() -> Bounded:
    made = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = bounded_filter("tojson", _tojson)
    made.filters["indent"] = bounded_filter("indent", do_indent)
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": _now,
        "namespace": _Names,
        "dict": _object,
    }
    return made


@lru_cache(maxsize=8)
def _compiled(text: str) -> jinja2.Template:
    return _environment().from_string(text)


@lru_cache(maxsize=8)
def names_read(text: str) -> frozenset[str]:
    """The names that a template reads and does not set itself; none of one that is broken."""
    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(text)))
    except Exception:  # whatever is wrong with it, rendering says so
        return frozenset()


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    template: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The messages as this tokenizer's model wants them, with the beginning of its answer.

    `template` is one of the tokenizer's, the usual one unless told; it may read `settings`.
    """
    text = tokenizer.get_chat_template() if template is None else template
    values = {
        **tokenizer.special_tokens_map,
        **settings,
        "messages": [dict(message) for message in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    try:
        return rendered(_compiled(text), values)
    except Exception as error:  # whatever a program of somebody else's raises
        line = line_of(error)
        where = f" in line {line}" if line else ""
        has_system = any(message["role"] == "system" for message in messages)
        instead = "leave --system out, or use" if has_system else "use"
        raise ConfigError(
            f"the tokenizer's chat template failed{where}: {one_line(error, None)}; {instead} "
            "plain prompts with --chat off"
        ) from error
