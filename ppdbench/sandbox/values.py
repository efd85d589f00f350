"""Plain data as JSON: all that a program and its tests ever exchange.

What is read here runs no code of whoever wrote it: exact builtin types come out, which compare
as they should, and handles of functions, which stay where they are.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

MOST_ITEMS = 100_000  # of something that may never end
SMALL = 1 << 53

# Kinds that are read from a list of values.
SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "iterator": iter,
    "dict": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    "range": lambda items: range(*items),
    "complex": lambda items: complex(*items),
    "Fraction": lambda items: Fraction(*items),
}
# Kinds that are read from one text.
TEXTS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "Decimal": Decimal,
}


class NotPlain(Exception):
    """A value that cannot be sent."""


def to_plain(value: Any, handle: Callable[[Any], int | None]) -> Any:
    """Turn a value into JSON; `handle` numbers what can be called and stays here, or says None."""
    match value:
        case None | bool() | str():
            return str(value) if isinstance(value, str) else value
        case Fraction():
            return {"Fraction": [to_plain(part, handle) for part in value.as_integer_ratio()]}
        case numbers.Integral():
            number = int(value)
            return number if abs(number) < SMALL else {"int": hex(number)}
        case numbers.Real():
            return float(value)
        case numbers.Complex():
            return {"complex": [complex(value).real, complex(value).imag]}
        case bytes() | bytearray():
            kind = "bytes" if isinstance(value, bytes) else "bytearray"
            return {kind: value.hex()}
        case Decimal():
            return {"Decimal": str(value)}
    if isinstance(value, list):
        return [to_plain(item, handle) for item in value]
    kind, items = _items(value)
    if kind:
        return {kind: [to_plain(item, handle) for item in items]}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return to_plain(value.item(), handle)
    number_of = handle(value)
    if number_of is None:
        raise NotPlain(type(value).__name__)
    return {"callable": number_of}


def _items(value: Any) -> tuple[str, list[Any]]:
    """The kind of a container and what it holds; no kind for anything else."""
    match value:
        case KeysView():
            return "set", list(value)
        case ValuesView():
            return "iterator", list(value)
        case tuple() | set() | frozenset():
            kinds = (tuple, set, frozenset)
            return next(kind.__name__ for kind in kinds if isinstance(value, kind)), list(value)
        case dict():
            return "dict", [part for item in value.items() for part in item]
        case range():
            return "range", [value.start, value.stop, value.step]
        case Iterator():
            items = list(islice(value, MOST_ITEMS + 1))
            if len(items) > MOST_ITEMS:
                raise NotPlain(f"{type(value).__name__} of more than {MOST_ITEMS} items")
            return "iterator", items
    return "", []


def from_plain(content: Any, callable_of: Callable[[int], Any]) -> Any:
    """The value again; `callable_of` stands for what can be called by its number."""
    match content:
        case None | bool() | int() | float() | str():
            return content
        case list():
            return [from_plain(item, callable_of) for item in content]
        case dict() if len(content) == 1:
            ((kind, held),) = content.items()
            if kind == "callable" and type(held) is int:
                return callable_of(held)
            if kind in TEXTS and isinstance(held, str):
                return TEXTS[kind](held)
            if kind in SEQUENCES and isinstance(held, list):
                return SEQUENCES[kind]([from_plain(item, callable_of) for item in held])
    raise ValueError("no value")


def become(old: Any, new: Any) -> None:
    """Give a list, set, dict or bytearray the content of another, as a call in place would."""
    match old, new:
        case (list(), list()) | (bytearray(), bytearray()):
            for number, (before, after) in enumerate(zip(old, new, strict=False)):
                if _changes(before, after):
                    become(before, after)
                    new[number] = before
            old[:] = new
        case (set(), set()):
            old.clear()
            old.update(new)
        case (dict(), dict()):
            for key, after in new.items():
                if key in old and _changes(old[key], after):
                    become(old[key], after)
                    new[key] = old[key]
            old.clear()
            old.update(new)


def _changes(before: Any, after: Any) -> bool:
    return type(before) is type(after) and isinstance(before, (list, set, dict, bytearray))
