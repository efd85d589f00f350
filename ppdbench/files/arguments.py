"""Arguments of a function, read by the types that it declares."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ppdbench.errors import ConfigError

UNIONS = (Union, UnionType)
# As a complaint names one and several of them.
WORDS = {
    str: ("text", "texts"),
    int: ("a whole number", "whole numbers"),
    bool: ("True or False", "True or False"),
    Path: ("a path", "paths"),
    NoneType: ("None", "None"),
}


def read_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a function was given, or the complaint about one of another type.

    Paths become texts, sequences tuples, and whole numbers of other libraries Python's own.
    """
    declared = get_type_hints(function)
    return {name: _argument(name, value, declared[name]) for name, value in given.items()}


def _argument(name: str, value: Any, declared: Any) -> Any:
    try:
        return _read(value, declared)
    except TypeError:
        said = " ".join(reprlib.repr(value).split())
        raise ConfigError(f"{name} must be {_words(declared)}, not {said}") from None


def _read(value: Any, declared: Any) -> Any:
    """The value as the declared type has it; a `TypeError` where it cannot be one."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in UNIONS:
        return _first(value, arguments)
    if origin is Literal and isinstance(value, str):  # whoever knows the names refuses others
        return value
    if origin is Sequence and isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return tuple(_read(item, arguments[0]) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {_read(key, arguments[0]): item for key, item in value.items()}
    if origin is not None:
        raise TypeError
    return _plain(value, declared)


def _first(value: Any, alternatives: Iterable[Any]) -> Any:
    for declared in alternatives:
        with suppress(TypeError):
            return _read(value, declared)
    raise TypeError


def _plain(value: Any, declared: type) -> Any:
    if isinstance(value, bool) and declared is not bool:  # to Python a number as well
        raise TypeError
    if declared is int and isinstance(value, Integral):
        return int(value)
    if not isinstance(value, declared):
        raise TypeError
    return str(value) if declared is Path else value


def _words(declared: Any, number: int = 0) -> str:
    """Name a type: one of it, or several with `number` 1."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in UNIONS:
        return _either([_words(one, number) for one in arguments])
    if origin is Literal:
        return _either([repr(one) for one in arguments])
    if origin is Sequence:
        return f"a list of {_words(arguments[0], 1)}"
    if origin is Mapping:
        return f"a mapping from {_words(arguments[0], 1)}"
    name = declared.__name__
    return WORDS.get(declared, (f"a {name}", f"{name}s"))[number]


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
